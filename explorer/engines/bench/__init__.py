"""What benchmark clients of the engines wrote: read into runs, and set beside what is predicted."""
