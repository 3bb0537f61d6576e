"""Decides which lines of HTTP clients are refusals of a provider: any program of a command may talk to any server.

curl, wget, Python, Node, Go, Java, Ruby and PHP print a status in a few forms (`phrases.http_status`). A temporary
refusal is believed from any server. A refused key or a used-up quota is not believed of a line that names another
host, that another tool (git, npm, docker …) printed, or that only describes an error.
"""

from __future__ import annotations

import re

from agentos.verdict import OVERLOADED, RATE_LIMITED, TRANSIENT

from . import _agent_talk as agent_talk
from . import _phrases as phrases

# Failures of the connection, which have no status.
_TRANSPORT = re.compile(
    r"\bcurl: \(\d+\)|\b(?:httpx2?|httpcore|requests|urllib3?|aiohttp)\.(?:\w+\.)*\w+: "
    r"|\b(?:Connection\w*|Timeout)Error: |\bE(?:CONNRESET|CONNREFUSED|TIMEDOUT|NOTFOUND|AI_AGAIN)\b"
    r"|\bsocket hang up\b|: fetch failed\b",
    re.IGNORECASE,
)
# Tools that have credentials of their own. In the case in which they print it: loggers write FATAL.
_OTHER_TOOL = re.compile(
    r"^\W*(?:(?:fatal|remote|hint|git|gh|pip|docker|podman|helm|kubectl|terraform|cargo|brew|hg|svn|E|W): "
    r"|Err:\d|npm (?:ERR!|error|warn)|error: RPC failed|(?:pnpm|yarn) )"
)
# Quoted text, tables, comments and diffs, and sentences that explain a status.
_DESCRIPTION = re.compile(
    r"^\s*(?:[>|#+]|//|- |\d+\. )|`[45]\d\d`|\bI\b"
    r"|(?i:\b(?:because|returns|means|instead of|handled?|retr(?:y|ies) on)\b"
    r"|\bwhen(?:ever)? (?:an?|the|you|it|your|no)\b|(?<!check )(?<!verify )\bif\b|\be\.g\.)"
)
_URL = re.compile(
    r"\bhttps?://(?:[^\s/@'\"]{1,100}@)?([\w.-]{1,253}|\[[\da-fA-F:]{2,40}\])(?::\d{1,5})?(/[^\s'\"<>)\]]{0,300})?"
)
_API_HOST = re.compile(
    r"(?:^|\.)(?:openai\.com|chatgpt\.com|openai\.azure\.com|azure\.com|anthropic\.com|claude\.(?:ai|com)|googleapis\.com"
    r"|google\.dev|mistral\.ai|groq\.com|cohere\.(?:com|ai)|deepseek\.com|openrouter\.ai|x\.ai|together\.(?:ai|xyz)"
    r"|fireworks\.ai|cerebras\.ai|huggingface\.co|amazonaws\.com|perplexity\.ai|githubcopilot\.com|moonshot\.(?:ai|cn)"
    r"|aliyuncs\.com|z\.ai|bigmodel\.cn|replicate\.com|nvidia\.com|sambanova\.ai|deepinfra\.com)$"
    # Gateways: on this machine, in a private network, or by their name in a cluster.
    r"|^(?:localhost|\[::1?\]|0\.0\.0\.0|127(?:\.\d+){3}|10(?:\.\d+){3}|192\.168(?:\.\d+){2}|172\.(?:1[6-9]|2\d|3[01])(?:\.\d+){2}"
    r"|[\w-]+)$|\.(?:local|internal|svc|test|invalid)$",
    re.IGNORECASE,
)  # fmt: skip
_API_PATH = re.compile(
    r"/(?:chat/)?completions\b|/v\d+(?:beta\d*|alpha)?/(?:messages|responses|models|embeddings|chat|complete|generate)\b"
    r"|:(?:stream)?generateContent\b|/openai/",
    re.IGNORECASE,
)


def is_believed(line: str, kind: str, provider: str) -> bool:
    """Return whether a line that reads like `kind` is an answer to this command's requests to its provider."""
    if phrases.http_status(line) is None and _TRANSPORT.search(line) is None:
        return False
    if agent_talk.is_listing(line) or agent_talk.is_sentence(line):
        return False
    if kind in (RATE_LIMITED, OVERLOADED, TRANSIENT):
        return True
    return not (_OTHER_TOOL.search(line) or _DESCRIPTION.search(_URL.sub("", line)) or names_other_host(line, provider))


def names_other_host(line: str, provider: str) -> bool:
    """Return whether a line, or an address, has hosts, none of which can be that of the provider or of a gateway."""
    has_address = False
    for host, path in _URL.findall(line):
        if (
            _API_HOST.search(host)
            or _API_PATH.search(path)
            or (provider and provider.partition("-")[0] in host.lower())
        ):
            return False
        has_address = True
    return has_address
