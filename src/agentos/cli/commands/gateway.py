"""`agentos gateway`: serves clients over HTTP with the credentials of a pool, and makes tokens for named clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from agentos.errors import GatewayError
from agentos.gateway.client_tokens import NamedClients, write_private
from agentos.home.paths import home, make_private
from agentos.keys.keys_file import Keys
from agentos.keys.reload_requests import GATEWAY, ReloadInbox

from ..console import Command, Failure, say, write_default_options
from ..duration_type import Duration
from ..options import option
from .gateway_env import env

if TYPE_CHECKING:
    from agentos.gateway.gateway import Gateway

    from ..launch.keys_watch import KeysWatch

DEFAULT_LISTEN = "127.0.0.1:8787"
# The client whose token is made if there is none.
DEFAULT_CLIENT = "default"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class _ServeByDefault(click.Group):
    """A group whose default command is `serve`."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        if not is_named and not ctx.resilient_parsing:
            args = ["serve", *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options of the default command, too."""
        super().format_options(ctx, formatter)
        write_default_options(serve, ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        return super().shell_complete(ctx, incomplete) + (
            serve.shell_complete(ctx, incomplete) if incomplete.startswith("-") else []
        )


@click.group(cls=_ServeByDefault)
def gateway() -> None:
    """Serve clients over HTTP: a credential for each of their requests. Without a command: serve.

    \b
    Examples:
      agentos gateway --keys keys.toml
      agentos gateway token laptop
    """


gateway.add_command(env)


class _Serve(Command):
    """The command with advice for the usual names of its option `--listen`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in ("--port", "--host", "--bind", "--address", "-p"):
                raise
            raise click.UsageError(
                f"No such option: {error.option_name}. To choose the address: --listen HOST:PORT ({DEFAULT_LISTEN})",
                ctx,
            ) from None


@gateway.command(cls=_Serve, short_help="Run a gateway until Ctrl-C.")
@option("--keys", "keys_file", metavar="FILE", type=click.Path(dir_okay=False), help="The keys file (TOML).")
@option("--key-env", metavar="PATTERN", help="Environment variables that hold keys, such as 'OPENAI_API_KEY*'.")
@option("--listen", metavar="HOST:PORT", default=DEFAULT_LISTEN, show_default=True, help="Address to listen on.")
@option(
    "--hold",
    type=Duration(),
    metavar="DURATION",
    help="Longest time that a request waits for a credential. [default: 280s]",
)
@option(
    "--store",
    metavar="URL",
    help="Where gateways and runs share the state of the keys. [default: sqlite:///$AGENTOS_HOME/pool.db]",
)
@option("--allow-host", multiple=True, metavar="NAME", help="A further name by which clients reach it. Repeatable.")
@option("--grace", type=Duration(), metavar="DURATION", default="10s", show_default=True,
        help="Time for requests to end after Ctrl-C.")  # fmt: skip
def serve(keys_file: str | None, key_env: str | None, listen: str, hold: float | None, store: str | None,
          allow_host: tuple[str, ...], grace: float) -> None:  # fmt: skip
    """Serve clients on one address, until Ctrl-C; a second Ctrl-C ends it at once.

    Clients send their requests as to the provider, with a client token in place of the key (agentos gateway env prints
    the settings of a client). The first start makes a token and says where it is. On SIGHUP, and on agentos keys
    reload, the keys file is read again.

    \b
    Examples:
      agentos gateway --keys keys.toml
      agentos gateway serve --keys keys.toml --hold 60 --allow-host gateway.internal
    """
    from agentos.gateway.gateway import check_installed, run_on_loop

    try:
        check_installed()
        gateway, watch = _make(keys_file, key_env, _address(listen), hold, store, allow_host)
        run_on_loop(_serve(gateway, watch, listen, grace))
    except GatewayError as error:
        raise Failure(str(error)) from None


def _make(keys_file: str | None, key_env: str | None, address: tuple[str, int], hold: float | None,
          store: str | None, allow_host: tuple[str, ...]) -> tuple[Gateway, KeysWatch]:  # fmt: skip
    from agentos.costs.prices import Prices
    from agentos.gateway.addresses import known_addresses
    from agentos.gateway.gateway import Gateway
    from agentos.reporters.writers import PlainReporter

    from ..launch.keys_watch import KeysReload, KeysWatch
    from ..launch.pool_setup import choose_store, make_pool, pool_warnings, read_keys

    keys = read_keys(keys_file, key_env, str(Path.cwd()))
    if keys is None:
        raise click.UsageError("a gateway needs credentials: give --keys FILE or --key-env PATTERN")
    choice = choose_store(store, keys, keys_file)
    reporter = PlainReporter()
    pool = make_pool(keys, choice, reporter, run="gateway")
    reporter.redact_with(pool.redact)
    for warning in (*keys.warnings, *pool_warnings(pool, choice)):
        say(f"Warning: {warning}", err=True)
    host, port = address
    gateway = Gateway(
        pool, providers=known_addresses(keys.base_urls), host=host, port=port, hold=hold, named=_named_clients(),
        allowed_hosts=allow_host, prices=Prices(keys.prices),
    )  # fmt: skip
    reload = KeysReload(None if keys_file is None else Path(keys_file).absolute(), keys, pool, _check_secrets)
    reload.listeners.append(lambda new: gateway.use_addresses(known_addresses(new.base_urls)))
    inbox = ReloadInbox(f"gateway-{os.getpid()}", GATEWAY)
    watch = KeysWatch(pool, reload, inbox, _say_if_possible)
    context = click.get_current_context()
    context.with_resource(inbox)
    return gateway, context.with_resource(watch)


def _check_secrets(keys: Keys) -> None:
    """Raise ValueError for keys that a gateway cannot use."""
    for credential in keys.credentials:
        if not credential.has_secret:
            raise ValueError(f"the credential {credential.id} has no key: it cannot be used through a gateway")


async def _serve(gateway: Gateway, watch: KeysWatch, listen: str, grace: float) -> None:
    from ..launch.keys_watch import hang_up_handler

    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()

    # SIGHUP reads the keys again; a hang-up of the terminal drains. Unless it is ignored (nohup).
    has_hang_up = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    numbers = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if has_hang_up else ()))

    def stop() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
            # The next one ends the process at once; but a shell and its terminal may both send SIGHUP.
            signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)
        task.cancel()
        _say_if_possible("Draining: requests under way may finish; press Ctrl-C again to end at once.")

    for number in numbers:
        loop.add_signal_handler(number, hang_up_handler(stop, watch) if number == signal.SIGHUP else stop)
    try:
        await gateway.serve(lambda url: _announce(url, listen), grace)
    except asyncio.CancelledError:
        _say_if_possible("The gateway has ended.")


def _say_if_possible(text: str) -> None:
    """Print a line on stderr, unless the terminal is gone or its reader has closed it."""
    with contextlib.suppress(OSError):
        say(text, err=True)


def _announce(url: str, listen: str) -> None:
    say(f"Gateway on {url}")
    file = _default_token_file()
    if file.exists():
        say(f"The token of the client {DEFAULT_CLIENT} is in {file}; agentos gateway token NAME makes another one.")
    host = _address(listen)[0]
    if host not in _LOOPBACK:
        say(f"Warning: {host} can be reached from other machines. Each client needs a token, and traffic is not "
            "encrypted: use a network that you trust.", err=True)  # fmt: skip


def _address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise click.BadParameter(f"write HOST:PORT, such as {DEFAULT_LISTEN}, not {listen!r}", param_hint="--listen")
    return host, int(port)


def _named_clients() -> NamedClients:
    """Return the named clients of this user; make a default one if there is none."""
    clients = NamedClients(_clients_file())
    if not clients.names():
        write_private(_default_token_file(), clients.add(DEFAULT_CLIENT) + "\n")
    return clients


def _clients_file() -> Path:
    return _folder() / "clients.json"


def _default_token_file() -> Path:
    return _folder() / f"{DEFAULT_CLIENT}.token"


def _folder() -> Path:
    """Return the folder of the gateway's files; make it, and the home directory above it, with any umask."""
    folder = home() / "gateway"
    make_private(folder)
    return folder


@gateway.command(short_help="Make a token for a named client.")
@click.argument("name")
@click.option("--remove", is_flag=True, help="Remove the client instead: its token ends within a second.")
def token(name: str, remove: bool) -> None:
    """Make a client token for NAME and print it, once: only its hash is stored. An older token of NAME ends.

    \b
    Examples:
      agentos gateway token laptop
      agentos gateway token laptop --remove
    """
    try:
        clients = NamedClients(_clients_file())
        if remove:
            clients.remove(name)
            say(f"Removed {name}.")
        else:
            made = clients.add(name)
            click.echo(made)
        if name == DEFAULT_CLIENT:  # its file must not hold a token that has ended
            _default_token_file().unlink(missing_ok=True)
            if not remove:
                write_private(_default_token_file(), f"{made}\n")
    except GatewayError as error:
        raise Failure(str(error)) from None
