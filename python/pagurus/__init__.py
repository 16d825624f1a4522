"""Client of a Pagurus cluster's controller.

    from pagurus import Client

    with Client() as cluster:                      # this machine's controller, as the command line finds it
        for host in cluster.list_hosts():
            print(host["id"], host["state"])
        cluster.drain_host("host1")
        for event in cluster.events(kinds=["move"]):
            print(event.name, event.data)

AsyncClient has the same methods, to be awaited. All methods but a few are made from the document that the controller
serves at /api/v1/openapi.json, so they are what the command line does, too.
"""

from ._client import Client, Event, Mirror, Problem, Unreachable
from ._aio import AsyncClient
from ._made import *  # noqa: F401,F403  the types of what is answered and asked

__all__ = ["AsyncClient", "Client", "Event", "Mirror", "Problem", "Unreachable"]
