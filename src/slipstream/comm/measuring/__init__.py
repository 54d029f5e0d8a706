"""What is measured as a job starts."""
