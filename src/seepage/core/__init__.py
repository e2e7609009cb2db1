"""What every other room stands on: networks as functions, files, and worker processes."""
