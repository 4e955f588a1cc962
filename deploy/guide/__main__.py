"""Writes the references of the guide into its pages."""

from deploy.guide.reference import made, references
from lanewise.guide import pages

for page in references():
    path = pages.path_of(page)
    path.write_text(made(page, path.read_text(encoding="utf-8")), encoding="utf-8")
    print(path)
