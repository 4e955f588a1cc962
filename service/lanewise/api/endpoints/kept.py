"""The endpoints of what a server keeps in its data directory."""

from lanewise.api.endpoints.endpoint import Endpoint
from lanewise.api.endpoints.usage import usage
from lanewise.api.files import endpoints as files
from lanewise.api.openapi import kept_answers as kept
from lanewise.api.openapi.openai_answers import DELETED

FILES = "/v1/files"
ONE_FILE = FILES + "/{file_id}"

KEPT = (
    Endpoint(
        FILES,
        "Keep a file: a form with file and purpose",
        files.upload_file,
        kept.FILE,
        verb="POST",
        keeps=True,
        also=(400, 403, 408, 413, 507),
    ),
    Endpoint(FILES, "The files of the key", files.list_files, kept.FILES, keeps=True, also=(400,)),
    Endpoint(ONE_FILE, "A file, described", files.get_file, kept.FILE, keeps=True, also=(404,)),
    Endpoint(
        ONE_FILE + "/content",
        "The bytes of a file",
        files.get_file_content,
        kept.BYTES,
        keeps=True,
        also=(404,),
    ),
    Endpoint(
        ONE_FILE,
        "Keep a file no longer",
        files.delete_file,
        DELETED,
        verb="DELETE",
        keeps=True,
        also=(404, 507),
    ),
    Endpoint(
        "/v1/usage",
        "What keys have used, by day and model",
        usage,
        kept.USAGE,
        keeps=True,
        also=(400,),
    ),
)
