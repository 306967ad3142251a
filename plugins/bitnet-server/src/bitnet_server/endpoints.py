"""The handlers of all paths except those that generate text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from bitnet_server import descriptions
from bitnet_server.bodies import at_once, in_thread, json_response, read_body
from bitnet_server.errors import ApiError, unavailable
from bitnet_server.models import Models
from bitnet_server.parsed_request import ParsedRequest
from bitnet_server.response import Document
from bitnet_server.schema import DetokenizeRequest, ModelRequest, R, TemplateRequest, TokenizeRequest, parse
from bitnet_server.served_model import ServedModel
from bitnet_server.service import Service

Endpoint = Callable[[Request], Awaitable[Response]]


class Endpoints:
    """The handlers of the server's own paths, and of OpenAI's and llama.cpp's that describe models and tokens."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def health(self, request: Request) -> Response:
        """Return 200 once the models of the start are loaded."""
        if self._models.loading:
            raise unavailable("loading model" if self._models.error is None else "the model could not be loaded")
        return json_response({"status": "ok"})

    async def live(self, request: Request) -> Response:
        """Return 200 while no engine is stuck."""
        if not self._models.alive:
            raise unavailable("the engine does not answer", 30)
        return json_response({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Return 200 while new requests are accepted."""
        if not self._models.ready:
            raise unavailable("not ready")
        return json_response({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Return the Prometheus metrics."""
        further = self._models.further
        others = [] if further is None else await further.samples()
        return Response(self._models.metrics.text(others), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def props(self, request: Request) -> Response:
        """Return the properties of a model and the server; does not load it."""
        return json_response(descriptions.props(self._found(request)))

    async def slots(self, request: Request) -> Response:
        """Return the running and waiting requests of a model, without their texts."""
        return json_response(descriptions.slots(self._found(request)))

    async def models(self, request: Request) -> Response:
        """Return every name of every model."""
        self._models.check_loaded()
        documents = [
            descriptions.model_document(one, name, self._models.created)
            for one in self._models.served
            for name in one.names
        ]
        return json_response({"object": "list", "data": documents})

    async def model(self, request: Request) -> Response:
        """Return one name of a model."""
        self._models.check_loaded()
        name = request.path_params["id"]
        return json_response(descriptions.model_document(self._models.find(name), name, self._models.created))

    async def load_model(self, request: Request) -> Response:
        """Load a model, and answer when it is loaded."""
        parsed_request = await self._parsed(request, ModelRequest)
        async with self._models.use(parsed_request.model):
            return json_response({"success": True})

    async def unload_model(self, request: Request) -> Response:
        """Begin to unload a model after its running requests."""
        parsed_request = await self._parsed(request, ModelRequest)
        self._models.unload(self._models.find(parsed_request.model))
        return json_response({"success": True})

    async def kept_response(self, request: Request) -> Response:
        """Return or drop a response that previous_response_id may name."""
        from bitnet_server.protocols.responses import drop_response, find_response

        kept, response_id = self._models.kept_responses, request.path_params["id"]
        if request.method == "DELETE":
            return json_response(drop_response(kept, response_id))
        return json_response(find_response(kept, response_id).document)

    async def input_items(self, request: Request) -> Response:
        """Return the items before the answer of a response that is kept."""
        from bitnet_server.protocols.input_items import input_items
        from bitnet_server.protocols.responses import find_response

        response = find_response(self._models.kept_responses, request.path_params["id"])
        return json_response(input_items(response, request.query_params))

    async def show(self, request: Request) -> Response:
        """Return Ollama's description of a model; does not load it."""
        from bitnet_server.protocols.ollama_models import ShowRequest, named_model, show

        parsed_request = await self._parsed(request, ShowRequest)
        self._models.check_loaded()
        return json_response(show(self._models.find(named_model(parsed_request))))

    async def pull(self, request: Request) -> Response:
        """Answer that a model is present, as Ollama does after a download. Raises ApiError 404 for any other."""
        from bitnet_server.protocols.ollama_models import PullRequest, named_model

        parsed_request = await self._parsed(request, PullRequest)
        self._models.check_loaded()
        self._models.find(named_model(parsed_request))
        if parsed_request.stream is False:
            return json_response({"status": "success"})
        return Response(b'{"status":"success"}\n', media_type="application/x-ndjson")

    async def unmanaged(self, request: Request) -> Response:
        """Refuse to change the list of models."""
        text = "models are not changed by requests here: `bitnet pull` and `bitnet models` do that"
        raise ApiError(501, text, code="unsupported_value")

    async def tokenize(self, request: Request) -> Response:
        """Return the tokens of a text."""
        parsed_request = await self._parsed(request, TokenizeRequest)
        text = parsed_request.content if parsed_request.content is not None else parsed_request.prompt
        if text is None:
            raise ApiError(400, "content is missing", param="content")
        special = (
            parsed_request.parse_special if parsed_request.content is not None else True
        )  # as in vLLM, whose field is prompt
        async with self._models.use(parsed_request.model) as service:
            service.check_text(text)
            model = service.model
            bos = (parsed_request.add_special or parsed_request.add_special_tokens) and model.tokenizer.add_bos
            tokens = await in_thread(lambda: model.tokenizer.encode(text, add_bos=bos, parse_special=special))
            return json_response({"tokens": tokens, "count": len(tokens), "max_model_len": model.engine.max_model_len})

    async def detokenize(self, request: Request) -> Response:
        """Return the text of tokens."""
        parsed_request = await self._parsed(request, DetokenizeRequest)
        async with self._models.use(parsed_request.model) as service:
            tokenizer, vocab = service.model.tokenizer, service.model.config.vocab

            def decoded() -> str:
                if max(parsed_request.tokens, default=0) >= vocab:
                    raise ApiError(400, f"tokens names a token outside 0..{vocab - 1}", param="tokens")
                return b"".join(map(tokenizer.token_bytes, parsed_request.tokens)).decode("utf-8", "replace")

            text = await in_thread(decoded)
            return json_response({"content": text, "prompt": text})

    async def apply_template(self, request: Request) -> Response:
        """Render messages as a prompt."""
        from bitnet_server.chat import plain_messages

        parsed_request = await self._parsed(request, TemplateRequest)
        async with self._models.use(parsed_request.model) as service:
            template = service.model.chat_template
            prompt = await in_thread(lambda: template.render(plain_messages(parsed_request.messages)))
            return json_response({"prompt": prompt})

    def _found(self, request: Request) -> ServedModel:
        """Return the model that the query names, or the first one."""
        self._models.check_loaded()
        return self._models.find(request.query_params.get("model"))

    async def _parsed(self, request: Request, kind: type[R]) -> R:
        self._models.check_accepting()
        body = await read_body(request, self._models.settings)
        return await at_once(lambda: parse(body, kind), body)


def posted(models: Models, parsed: Callable[[bytes], ParsedRequest[Document]]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        models.check_accepting()
        body = await read_body(request, models.settings)
        parsed_request = await at_once(lambda: parsed(body), body)
        async with models.use(parsed_request.model, parsed_request.keep_alive) as service:
            return json_response(await in_thread(lambda: parsed_request.build(service), body))

    return endpoint


def described(models: Models, describe: Callable[[Models], Document]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        models.check_loaded()
        return json_response(describe(models))

    return endpoint


def described_model(models: Models, describe: Callable[[Service], Document]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        async with models.use(request.query_params.get("model")) as service:
            return json_response(describe(service))

    return endpoint
