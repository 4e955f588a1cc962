"""The endpoints of what a server keeps in its data directory."""

from lanewise.api.batches import endpoints as batches
from lanewise.api.batches import message_batches as messages
from lanewise.api.endpoints.absent import NO_TEXT
from lanewise.api.endpoints.endpoint import Answering, Body, Endpoint, Given
from lanewise.api.endpoints.usage import usage
from lanewise.api.files import endpoints as files
from lanewise.api.openapi import kept_answers as kept
from lanewise.api.openapi.openai_answers import DELETED

FILES = "/v1/files"
ONE_FILE = FILES + "/{file_id}"
BATCHES = "/v1/batches"
ONE_BATCH = BATCHES + "/{batch_id}"
MESSAGE_BATCHES = "/v1/messages/batches"


def _messages(
    below: str,
    summary: str,
    answer: Answering,
    gives: Given,
    *also: int,
    body: Body | None = None,
    verb: str | None = None,
) -> Endpoint:
    path = MESSAGE_BATCHES + below
    return Endpoint(
        path, summary, answer, gives, body, verb=verb, keeps=True, also=also, unless=NO_TEXT
    )


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
    Endpoint(
        BATCHES,
        "Have the requests of a file answered",
        batches.create_batch,
        kept.BATCH,
        batches.BatchRequest,
        keeps=True,
        also=(403, 507),
    ),
    Endpoint(
        BATCHES,
        "The batches of the key",
        batches.list_batches,
        kept.BATCHES,
        keeps=True,
        also=(400,),
    ),
    Endpoint(
        ONE_BATCH, "How far a batch is", batches.get_batch, kept.BATCH, keeps=True, also=(404,)
    ),
    Endpoint(
        ONE_BATCH + "/cancel",
        "End a batch before its time",
        batches.cancel_batch,
        kept.BATCH,
        verb="POST",
        keeps=True,
        also=(400, 404, 507),
    ),
    _messages(
        "",
        "Have many messages answered",
        messages.create_message_batch,
        kept.MESSAGE_BATCH,
        *(403, 507),
        body=messages.MessageBatchRequest,
    ),
    _messages(
        "", "The batches of the key", messages.list_message_batches, kept.MESSAGE_BATCHES, 400
    ),
    _messages(
        "/{batch_id}",
        "How far a batch is",
        messages.get_message_batch,
        kept.MESSAGE_BATCH,
        404,
    ),
    _messages(
        "/{batch_id}",
        "Forget a batch that has ended",
        messages.delete_message_batch,
        kept.MESSAGE_BATCH_DELETED,
        *(400, 404, 507),
        verb="DELETE",
    ),
    _messages(
        "/{batch_id}/cancel",
        "End a batch before its time",
        messages.cancel_message_batch,
        kept.MESSAGE_BATCH,
        *(400, 404, 507),
        verb="POST",
    ),
    _messages(
        "/{batch_id}/results",
        "The results of a batch, a line for each request",
        messages.get_message_batch_results,
        kept.JSONL,
        *(400, 404),
    ),
)
