"""What compares methods: ablations, rows of experiments, results."""
