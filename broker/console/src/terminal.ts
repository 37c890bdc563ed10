// The text of streams as a terminal shows it: lines, carriage returns, backspaces, cursor up, erased lines.
// Colours stay in the lines as escape sequences, and are read when a line is shown.

export type Line = { text: string; kind: string; start: string };

const ESCAPE = /\x1b(?:\[([0-9;?]*)([A-Za-z])|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[()][A-Za-z0-9]|[=>78cDEHM])/g;
const MAX_LINES = 1_000_000;
const MAX_UP = 1_000;

export class Terminal {
  readonly lines: Line[] = [];
  private row = 0;
  private overwrites = false;
  private style = "";
  private rest = "";

  write(content: string, kind: string) {
    let text = this.rest + content;
    this.rest = "";
    const open = text.lastIndexOf("\x1b");
    if (open >= 0 && text.length - open < 32 && /^\x1b(\[[0-9;?]*)?$/.test(text.slice(open))) {
      this.rest = text.slice(open);
      text = text.slice(0, open);
    }
    const current = this.lines[this.row];
    if (current && current.kind !== kind && current.text && !this.overwrites) this.newLine();
    const pieces = text.split("\n");
    for (let index = 0; index < pieces.length; index++) {
      if (index) this.newLine();
      const piece = pieces[index]!;
      if (piece) this.put(piece, kind);
      else this.at(kind);
    }
  }

  private newLine() {
    this.row++;
    this.overwrites = false;
  }

  private at(kind: string): Line {
    while (this.lines.length <= this.row) {
      if (this.lines.length >= MAX_LINES) {
        this.lines.splice(0, MAX_LINES / 10);
        this.row -= MAX_LINES / 10;
      }
      this.lines.push({ text: "", kind, start: this.style });
    }
    const line = this.lines[this.row]!;
    if (!line.text) {
      line.kind = kind;
      line.start = this.style;
    }
    return line;
  }

  private put(piece: string, kind: string) {
    const parts = piece.split("\r");
    for (let index = 0; index < parts.length; index++) {
      if (index) this.overwrites = true;
      if (parts[index]) this.append(parts[index]!, kind);
    }
  }

  private append(part: string, kind: string) {
    let text = part;
    if (part.includes("\x1b")) {
      text = part.replace(ESCAPE, (whole, values: string | undefined, end: string | undefined) => {
        if (end === "m") {
          this.style = values === "" || values === "0" ? "" : (this.style + whole).slice(-200);
          return whole;
        }
        if (end === "A") this.row = Math.max(0, this.row - Math.min(Number(values) || 1, MAX_UP));
        if (end === "K" && this.overwrites) this.at(kind).text = "";
        return "";
      });
    }
    if (!text) return;
    while (text.includes("\b")) {
      const next = text.replace(/[^\b]\x08/g, "");
      text = next === text ? text.replace(/\x08/g, "") : next;
    }
    const line = this.at(kind);
    if (this.overwrites) {
      const isPlain = !line.text.includes("\x1b") && !text.includes("\x1b");
      line.text = isPlain ? text + line.text.slice(text.length) : text;
      line.kind = kind;
      this.overwrites = false;
    } else {
      line.text += text;
    }
  }

  plain(): string {
    return this.lines.map((line) => line.text.replace(ESCAPE, "")).join("\n");
  }
}
