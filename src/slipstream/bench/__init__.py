"""Measurements of slipstream and of its peers, in the same processes and in turns.

`collective` and `train` are what is measured. What they have in common is here: `jobs` and `measurement` start the
ranks, `turns` is the ranks' loop, `samples` the arithmetic of repeats, `record` the JSON that is kept, `report` and
`view` what is shown, `plot` the picture, `page` what documents show.
"""
