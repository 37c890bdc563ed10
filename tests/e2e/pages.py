"""Pages that a cell serves inside the sandbox, for tests of the browser."""

SERVER = '''
import http.server, threading, time, urllib.parse

FORM = """<title>Order</title><h1>An order</h1>
<form action="/sent" method="post">
  <label>Name <input id="name" name="name"></label>
  <input type="password" name="secret" placeholder="Password">
  <select name="colour"><option>red<option>blue</select>
  <label><input type="checkbox" name="gift"> A gift</label>
  <button>Send</button>
</form><a href="/next">Next page</a> <p hidden>unseen</p>"""
PAGES = {
    "/": FORM,
    "/next": "<title>Next</title><p>The next page</p>",
    "/dialogs": """<title>Dialogs</title><button id="ask" onclick="alert('hello');
        document.title = String(confirm('sure?')) + prompt('name?')">Ask</button>""",
    "/windows": """<title>First</title><a id="open" target="_blank" href="/next">Open</a>
        <button id="many" onclick="for (let i = 0; i < 20; i++) window.open('/next')">Many</button>""",
    "/files": """<title>Files</title><a id="file" href="/data.csv">A file</a>""",
    "/long": "<title>Long</title><div style='height: 3000px'>long</div>",
}

class Pages(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        if self.path == "/hangs":
            time.sleep(600)
        self.send_response(200)
        if self.path == "/data.csv":
            self.send_header("Content-Disposition", "attachment; filename=data.csv")
            body = b"a,b\\n1,2\\n"
        else:
            self.send_header("Content-Type", "text/html; charset=utf-8")
            body = PAGES.get(self.path, "").encode()
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        fields = dict(urllib.parse.parse_qsl(sent))
        self.wfile.write(f"<title>Sent</title><p id=sent>{sorted(fields.items())}</p>".encode())

server = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Pages)
threading.Thread(target=server.serve_forever, daemon=True).start()
'''
SITE = "http://127.0.0.1:8000"
