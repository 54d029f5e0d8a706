"""Operations that have names: the ranks agree in which order they start them.

Ranks may call them in any order, and from any thread. An operation that they call with different arguments fails alone.
"""
