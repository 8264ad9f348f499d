"""deploy/: the chart, the kustomizations, the image, and what their documents say."""
