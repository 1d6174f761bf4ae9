"""What a run leaves behind: metrics, recorded trees, checkpoints, and the page that shows them."""
