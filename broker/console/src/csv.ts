// Reads the rows of a CSV file, as spreadsheets write them.

const MAX_COLUMNS = 500;
const SEPARATORS = [",", ";", "\t", "|"];

function separatorOf(text: string): string {
  const line = text.slice(0, 10_000).split("\n")[0]!.replace(/"[^"]*"/g, "");
  return SEPARATORS.map((each) => [line.split(each).length, each] as const).sort((a, b) => b[0] - a[0])[0]![1];
}

/** The rows with their fields. A field in quotes may have separators, line ends, and quotes twice. */
export function parseCsv(text: string): string[][] {
  const separator = separatorOf(text);
  const rows: string[][] = [];
  let row: string[] = [];
  let at = text.startsWith("\ufeff") ? 1 : 0;
  while (at < text.length) {
    let field: string;
    if (text[at] === '"') {
      field = "";
      for (at++; at < text.length; ) {
        const end = text.indexOf('"', at);
        const stop = end < 0 ? text.length : end;
        field += text.slice(at, stop);
        at = stop + 1;
        if (text[at] !== '"') break;
        field += '"';
        at++;
      }
    } else {
      field = "";
    }
    const from = at;
    while (at < text.length && text[at] !== separator && text[at] !== "\n") at++;
    field += text.slice(from, at).replace(/\r$/, "");
    if (row.length < MAX_COLUMNS) row.push(field);
    if (text[at] !== separator) {
      rows.push(row);
      row = [];
    } else if (at === text.length - 1) {
      row.push("");
    }
    at++;
  }
  if (row.length) rows.push(row);
  return rows;
}
