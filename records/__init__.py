"""What a run leaves behind, and the page that shows it."""
