"""IP addresses: what is one, and which nobody is to be sent to."""

from __future__ import annotations

import ipaddress

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

# Where clouds answer a machine that asks for its own credentials, whoever has it ask.
_METADATA = frozenset({"100.100.100.200", "fd00:ec2::254", "fd20:ce::254", "168.63.129.16"})
# Neither is a place for a request, though the library calls them global (RFC 6890; RFC 3879).
_UNROUTABLE = (ipaddress.ip_network("192.0.0.0/24"), ipaddress.ip_network("fec0::/10"))
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_ip_address(host: str) -> bool:
    """Say whether a host is an address, and no name that somebody has to look up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def refusal_reason(address: IpAddress, *, private: bool) -> str | None:
    """Say why a target's address is none to go to; None if it may be gone to."""
    inner = _embedded_ipv4(address)
    if inner is not None:
        return refusal_reason(inner, private=private)
    if str(address) in _METADATA or address.is_link_local:
        return "where machines ask for their own credentials"
    reserved = address.is_reserved and not address.is_loopback  # ::1 is both
    if address.is_multicast or address.is_unspecified or reserved:
        return "which is no machine's address"
    inside = not address.is_global or any(address in net for net in _UNROUTABLE)
    if inside and not private:
        return "a private address (write private = true in the target if that is meant)"
    return None


def _embedded_ipv4(address: IpAddress) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address stands for, None if it stands for itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)
