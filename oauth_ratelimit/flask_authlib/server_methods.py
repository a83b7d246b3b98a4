"""Hooks around the methods of a server, however those are defined and called.

A hook is a data descriptor, which wins over a method that is set on the object. One that is set later is kept as the
method that the hook calls. Arguments are passed on exactly as they came.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from types import MethodType
from typing import Any, NamedTuple


class _Names(NamedTuple):
    by_position: tuple[str, ...] = ()
    by_keyword: tuple[str, ...] = ()  # alone
    takes_any: bool = False  # keyword


class MethodHook:
    """Data descriptor that runs a function around a method of a server.

    Args:
        function: Gets the call, and decides whether to run it.
        authlib_names: Names of the arguments in Authlib's order, for methods that do not name theirs so.
        nests: True if a call of the method within itself is one of its own, such as a request within a request.
    """

    def __init__(self, function: Callable[["MethodCall"], Any], *authlib_names: str, nests: bool = False) -> None:
        self.function = function
        self.nests = nests
        self.running: ContextVar[Any] = ContextVar(function.__name__, default=None)  # the server
        self._authlib_names = authlib_names

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner
        self.name = name
        self._kept = f"_oauth_ratelimit_{name}"  # attribute of a server: what is made of the method of its class

    def __get__(self, server: Any, _: type | None = None) -> Any:
        if server is None:
            return self
        own = server.__dict__
        if self.name in own or self._kept not in own:
            return self._hooked(server)
        kind, known, hooked = own[self._kept]
        method = getattr(super(self._owner, server), self.name)
        is_same = kind is type(server) and type(method) is MethodType and method == known
        return hooked if is_same else self._hooked(server)

    def _hooked(self, server: Any) -> Any:
        """Return the server's method with this hook; without it where one of a class above runs already."""
        name, own, kind = self.name, vars(server), type(server)
        top = next(vars(each)[name] for each in kind.__mro__ if name in vars(each))
        if top is self and name in own:
            method = own[name]
            return HookedMethod(self, server, method) if callable(method) else method
        method = getattr(super(self._owner, server), name)
        if top is not self and isinstance(top, MethodHook):
            return method
        hooked = HookedMethod(self, server, method) if callable(method) else method
        own[self._kept] = kind, method, hooked
        return hooked

    def __set__(self, server: Any, value: Any) -> None:
        if isinstance(value, HookedMethod) and value.__self__ is server:
            value = value.__wrapped__  # it was read from here, and is put back
        vars(server)[self.name] = value

    def __delete__(self, server: Any) -> None:
        if self.name not in vars(server):
            raise AttributeError(self.name)
        del vars(server)[self.name]

    def __call__(self, server: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the method as a function of the class."""
        return self.__get__(server)(*args, **kwargs)

    def names_of(self, method: Any) -> _Names:
        """Return the names of a method's arguments: its own, or Authlib's in the places of names that nobody knows."""
        try:
            parameters = list(signature(method).parameters.values())
        except Exception:  # noqa: BLE001  # it has none that can be read
            return _Names(self._authlib_names)
        positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        own = [each.name for each in parameters if each.kind in positional]
        for position, name in enumerate(self._authlib_names):
            if name in own:
                continue
            if position < len(own) and own[position] not in self._authlib_names:
                own[position] = name
            elif position == len(own) and any(each.kind is Parameter.VAR_POSITIONAL for each in parameters):
                own.append(name)
        alone = tuple(each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY)
        return _Names(tuple(own), alone, any(each.kind is Parameter.VAR_KEYWORD for each in parameters))


class HookedMethod:
    """A server's method with its hook. It has the attributes of the method, such as those that extensions know it by.

    It equals the method, as Flask compares the views of an endpoint.
    """

    def __init__(self, hook: MethodHook, server: Any, method: Any) -> None:
        module = getattr(method, "__module__", None)  # the class has one of its own
        vars(self).update(__module__=module, __self__=server, __wrapped__=method, _parts=(hook, server, method))

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self).get("__wrapped__"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__wrapped__, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the hook; only the method if it is called by one that was set in its place, whose hook runs already."""
        hook, server, method = self._parts
        if hook.running.get() is server:
            is_replaced = vars(server).get(hook.name, method) is not method
            if is_replaced or not hook.nests:
                return method(*args, **kwargs)
        token = hook.running.set(server)
        try:
            return hook.function(MethodCall(self, args, kwargs))
        finally:
            hook.running.reset(token)

    @cached_property
    def argument_names(self) -> _Names:
        hook, _, method = self._parts
        names: _Names = hook.names_of(method)
        return names

    def shows(self, *names: str) -> bool:
        """Return True if the method has arguments of these names."""
        known = self.argument_names
        return all(name in known.by_position or name in known.by_keyword for name in names)

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == (other.__wrapped__ if isinstance(other, HookedMethod) else other))

    def __hash__(self) -> int:
        return hash(self.__wrapped__)


@dataclass(slots=True, eq=False)
class MethodCall:
    """One call of a server's method. Calling it runs the method."""

    method: HookedMethod
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> Any:
        return self.method.__wrapped__(*self.args, **self.kwargs)

    def shows(self, name: str) -> bool:
        """Return False if the method has no argument of this name, so that it may know the value from elsewhere."""
        return name in self.kwargs or self.method.shows(name)

    def argument(self, name: str, default: Any = None) -> Any:
        """Return an argument by its name, or the default if the call leaves it out."""
        if name not in self.kwargs:
            for own, value in zip(self.method.argument_names.by_position, self.args, strict=False):
                if own == name:
                    return value
        return self.kwargs.get(name, default)

    def named_arguments(self) -> dict[str, Any]:
        """Return all arguments by name, or by position if they have no name."""
        names = self.method.argument_names.by_position
        names += tuple(map(str, range(len(names), len(self.args))))
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}
