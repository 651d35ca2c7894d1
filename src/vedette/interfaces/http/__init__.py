"""How a running fleet is reached: the local API, and HTTP."""


def preload() -> None:
    """Import what HTTP serving is made of: a third of a second, so any thread may do it before."""
    import starlette.applications  # noqa: F401
    import uvicorn.protocols.http.h11_impl  # noqa: F401

    from vedette.interfaces.http import local_api, server  # noqa: F401
