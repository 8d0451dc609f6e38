"""A proxy in front of an HTTP server that fails as networks do: errors, delays, cut bodies, a limited rate; seeded."""
import http.client
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Faults:
    """`with Faults(port) as proxy: ... proxy.url`; set `share` (of requests that fail) and `kinds` at any time.

    kinds: 'status' (500 or 503), 'cut' (half of the body, then the connection breaks), 'drop' (no answer), 'late' (`delay`
    seconds of nothing first), 'lost' (the server is asked, but its answer is thrown away), 'lie' (half of the body, with a
    length that fits).
    `rate` is the most bytes a second in each direction, over all connections."""
    def __init__(self, port, share=0., kinds=('status',), seed=0, delay=.5, rate=None):
        self.port, self.share, self.kinds, self.delay, self.rate = port, share, kinds, delay, rate
        self.rng, self.lock, self.log, self.free_at = random.Random(seed), threading.Lock(), [], {}
        self.deny = lambda h: False                                             # requests that are refused with 403
        faults = self
        class Handler(BaseHTTPRequestHandler):
            protocol_version = 'HTTP/1.1'
            def log_message(self, *a): pass
            def handle_any(self): faults.handle(self)
            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any
        self.server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self.server.daemon_threads = True
        self.url = f'http://127.0.0.1:{self.server.server_address[1]}'

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, kwargs=dict(poll_interval=.05), daemon=True).start()
        return self

    def __exit__(self, *a):
        self.server.shutdown()
        self.server.server_close()

    def choose(self, h):
        with self.lock:
            kind = self.rng.choice(self.kinds) if self.rng.random() < self.share else None
            self.log.append((h.command, h.path, kind))
        return kind

    def pace(self, way, n):
        if not self.rate: return
        with self.lock:
            start = max(time.time(), self.free_at.get(way, 0))
            self.free_at[way] = start + n/self.rate
        time.sleep(max(0, start + n/self.rate - time.time()))

    def handle(self, h):
        kind = self.choose(h)
        if h.headers.get('Expect', '').lower() == '100-continue': pass          # the base class has answered it
        body = h.rfile.read(int(h.headers.get('Content-Length') or 0))
        self.pace('up', len(body))
        if self.deny(h): return self.answer(h, 403, {},
                                            b'' if h.command == 'HEAD' else b'<Error><Code>AccessDenied</Code></Error>')
        if kind == 'late': time.sleep(self.delay)
        if kind == 'drop': return self.hang_up(h)
        if kind == 'status':
            status = self.rng.choice([500, 503])
            return self.answer(h, status, {}, b'' if h.command == 'HEAD' else b'<Error><Code>InternalError</Code></Error>')
        upstream = http.client.HTTPConnection('127.0.0.1', self.port, timeout=60)
        headers = {k: v for k, v in h.headers.items() if k.lower() not in ('connection', 'expect')}
        upstream.request(h.command, h.path, body, headers)
        r = upstream.getresponse()
        data = r.read()
        upstream.close()
        if kind == 'lost': return self.hang_up(h)
        self.pace('down', len(data))
        keep = {k: v for k, v in r.getheaders() if k.lower() not in ('connection', 'transfer-encoding', 'content-length',
                                                                     'server', 'date')}
        length = r.getheader('Content-Length') if h.command == 'HEAD' else str(len(data))
        if kind == 'lie': data, length = data[:len(data)//2], str(len(data)//2) if h.command != 'HEAD' else length
        self.answer(h, r.status, {**keep, 'Content-Length': length}, data[:len(data)//2] if kind == 'cut' else data)
        if kind == 'cut': self.hang_up(h)

    def answer(self, h, status, headers, data):
        try:
            h.send_response(status)
            for k, v in {'Content-Length': str(len(data)), **headers}.items():
                if v is not None: h.send_header(k, v)
            h.end_headers()
            if h.command != 'HEAD': h.wfile.write(data)
        except OSError: pass                                                     # the client did not wait

    def hang_up(self, h):
        h.close_connection = True
        try: h.wfile.flush(); h.connection.shutdown(2)
        except OSError: pass
