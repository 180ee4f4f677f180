"""What several tests share: tiny systems, worlds, files and commands."""
