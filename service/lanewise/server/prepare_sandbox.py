"""What the processes with limits have ready for all requests, made once."""

import asyncio
import logging

from lanewise.api.shared.state import Phase, ServerState
from lanewise.sandbox.lane import SandboxError
from lanewise.text.chat_template import ChatTemplateError

logger = logging.getLogger(__name__)


async def prepare_sandbox(state: ServerState) -> None:
    """Say early, but not before the server is ready, what requests will be refused."""
    if state.warming is not None:
        await asyncio.wait({state.warming})
    if state.eyes is not None and state.phase is Phase.READY:
        try:
            await state.eyes.service.prepare()
        except SandboxError as error:
            logger.warning("what reads images has not been tried: %s", error)
    if state.chat_template is None or state.phase is not Phase.READY:
        return
    try:
        await state.templates.check(state.chat_template)
    except ChatTemplateError as error:
        logger.warning("chat requests get status 400: %s", error)
    except SandboxError as error:
        logger.warning("the chat template has not been checked: %s", error)
