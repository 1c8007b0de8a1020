"""What the HTTP process and the scheduler say to each other, over SGLang's own channel. Imports SGLang.

SGLang routes by type and keeps one call of a type in flight, so admission and close have types of their own. The contents are JSON text:
SGLang's message format then has nothing to know about them.
"""

from __future__ import annotations

from sglang.srt.managers.io_struct import BaseReq, hook_custom_types


class AdmissionCall(BaseReq):
    body: str = ""


class AdmissionReply(BaseReq):
    body: str = ""


class CloseCall(BaseReq):
    body: str = ""


class CloseReply(BaseReq):
    body: str = ""


COMMUNICATORS = (("apd_admission", AdmissionReply), ("apd_close", CloseReply))


def install() -> None:
    """Make the types and their communicators known to this process. Raises AttributeError where SGLang has no place for them."""
    from sglang.srt.managers import tokenizer_control_mixin

    hook_custom_types(AdmissionCall, AdmissionReply, CloseCall, CloseReply)
    tokenizer_control_mixin._COMMUNICATOR_SPECS.extend(COMMUNICATORS)
