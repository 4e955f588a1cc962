"""The guide that travels with the package: its pages in Markdown, and how they become HTML."""
