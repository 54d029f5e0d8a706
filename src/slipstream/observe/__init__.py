"""What a job does, for people to see: the timeline."""
