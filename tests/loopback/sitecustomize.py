"""No Python process of the tests speaks to anything but this machine: an attempt fails, and is noted in the file that GUARD_LOG names.

Programs that are not Python are not watched. Python loads a module of this name by itself when it starts; \
its folder is on the PYTHONPATH of all processes that tests start."""
import ipaddress
import os
import socket
import sys

class Elsewhere(ConnectionRefusedError): "A test wanted to speak to another machine"

def here(address):
    "Is it this machine?"
    if isinstance(address, bytes): address = address.decode('ascii', 'replace')
    if address in (None, '', 'localhost', '0.0.0.0', '::', socket.gethostname()): return True
    try: return ipaddress.ip_address(address.partition('%')[0]).is_loopback
    except ValueError: return False

def number(address):
    "Is it an address already, so that nobody is asked for it?"
    try: return bool(ipaddress.ip_address(address))
    except ValueError: return False

def watch(event, args):
    log = os.environ.get('GUARD_LOG')
    if not log or not event.startswith('socket.'): return
    if event in ('socket.connect', 'socket.sendto', 'socket.sendmsg'):
        at = args[1]
        if args[0].family not in (socket.AF_INET, socket.AF_INET6) or not at or here(at[0]): return
    elif event in ('socket.getaddrinfo', 'socket.gethostbyname'):
        if here(args[0]) or number(args[0]): return
        at = args[0]
    else: return
    line = f'{event} {at!r} by process {os.getpid()}: {" ".join(sys.argv)[:200]}'
    with open(log, 'a') as f: f.write(line + '\n')
    raise Elsewhere(f'tests speak to nothing but this machine: {line}')

if os.environ.get('GUARD_LOG'): sys.addaudithook(watch)
