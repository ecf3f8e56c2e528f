"""Logging: readable lines on a terminal, JSON otherwise; never a body, token, password or key."""

import logging
import sys

import structlog


def configure_logging() -> None:
    """Send structlog's and the standard library's records to stderr, one line each.

    Tracebacks come without the values of variables: among those are passwords, tokens and bodies.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if sys.stderr.isatty():
        render: list[structlog.typing.Processor] = [
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        ]
    else:
        without_locals = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        render = [structlog.processors.ExceptionRenderer(without_locals), structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    # It would log requests that are not HTTP, with their content. Failures of this server are in its own log.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    for ours in ("conclave", "spark"):
        logging.getLogger(ours).setLevel(logging.INFO)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of module ``name``."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger
