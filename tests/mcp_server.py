"""An MCP server over standard input and output, as tests start it: it writes down what is asked of it."""

import os
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("harbour")


@server.tool()
def depth(pier: str) -> str:
    """Tell how deep the water is at a pier."""
    with Path(os.environ["LEDGER"]).open("a") as ledger:
        print(pier, file=ledger)
    return f"12 m at {pier}"


if __name__ == "__main__":
    server.run("stdio")
