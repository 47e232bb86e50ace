"""The HTTP API: which path is answered by what. OpenAI's routes, and what operators and orchestrators ask for."""

import time
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.core.errors import DiptychError, UnknownModel
from services.gateway.generations import Generations
from services.gateway.http_answer import Answering
from services.gateway.openai_reply import encoded, error_body, model_body, status_of
from services.gateway.served_model import ServedModel
from services.gateway.settings import Settings
from services.runtime.metrics import CONTENT_TYPE
from services.runtime.process import Process

_JSON = "application/json"


def http_app(
    process: Process[Settings], generations: Generations, model: ServedModel, is_ready: Callable[[], bool]
) -> Starlette:
    """The ASGI application."""
    limit, seconds = process.settings.max_body_bytes, process.settings.body_seconds
    chat = Answering(generations, is_chat=True, max_body_bytes=limit, body_seconds=seconds)
    plain = Answering(generations, is_chat=False, max_body_bytes=limit, body_seconds=seconds)
    listed_model = model_body(model, int(time.time()))

    async def models(_: Request) -> Response:
        return Response(encoded({"object": "list", "data": [listed_model]}), media_type=_JSON)

    async def one_model(request: Request) -> Response:
        if request.path_params["name"] != model.name:
            raise UnknownModel("this model is not served here", field="model")
        return Response(encoded(listed_model), media_type=_JSON)

    async def health(_: Request) -> Response:
        return Response()

    async def ready(_: Request) -> Response:
        takes_requests = is_ready() and not process.stopping.is_set()
        return Response(status_code=200 if takes_requests else 503)

    async def metrics(_: Request) -> Response:
        return Response(process.metrics.exposition(), headers={"content-type": CONTENT_TYPE})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", plain, methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", one_model),
            Route("/health", health),
            Route("/ready", ready),
            Route("/metrics", metrics),
        ],
        exception_handlers={DiptychError: _known_error, HTTPException: _http_error},
    )


async def _known_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, DiptychError):
        raise error
    return Response(encoded(error_body(error)), status_of(error), media_type=_JSON)


async def _http_error(_: Request, error: Exception) -> Response:
    """A path or method that is not there, in the form clients expect of this API."""
    if not isinstance(error, HTTPException):
        raise error
    body = {"message": error.detail, "type": "invalid_request_error", "param": None, "code": None}
    return Response(encoded({"error": body}), error.status_code, dict(error.headers or {}), media_type=_JSON)
