// A file as it can be shown: a picture, a table, a page in a frame without rights, code, or text.
import { useEffect, useState } from "preact/hooks";
import { ApiError, filePath, request, save } from "./api";
import { Code } from "./code";
import { parseCsv } from "./csv";
import { Grid } from "./grid";
import { Html, Lines } from "./output";
import { number, t } from "./preferences";
import { Button, Dialog, Empty, Skeleton } from "./ui";

const PREVIEW_BYTES = 1024 * 1024;
const PICTURE_BYTES = 20 * 1024 * 1024;
const MAX_COLOURED = 50_000;
const PICTURES: Record<string, string> = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp", bmp: "image/bmp", ico: "image/x-icon", svg: "image/svg+xml" };
const LANGUAGES: Record<string, string> = { py: "python", js: "javascript", mjs: "javascript", ts: "javascript", json: "javascript", sh: "shell", bash: "shell" };
const TABLES = new Set(["csv", "tsv"]);
const PAGES = new Set(["html", "htm"]);

export const extensionOf = (path: string) => /\.([^./]+)$/.exec(path)?.[1]?.toLowerCase() ?? "";

export async function download(id: string, path: string) {
  save(await (await request("GET", filePath(id, path))).blob(), path.split("/").pop() ?? path);
}

type Found = { text: string } | { picture: string } | { problem: string };

/** Read the beginning of a file. */
async function read(id: string, path: string): Promise<{ found: Found; isCut: boolean }> {
  const type = PICTURES[extensionOf(path)];
  const limit = type ? PICTURE_BYTES : PREVIEW_BYTES;
  let answer: Response;
  try {
    answer = await request("GET", filePath(id, path), undefined, { Range: `bytes=0-${limit - 1}` });
  } catch (error) {
    if (error instanceof ApiError && error.status === 416) return { found: { text: "" }, isCut: false }; // it is empty
    throw error;
  }
  const data = await answer.arrayBuffer();
  const total = Number(answer.headers.get("Content-Range")?.split("/")[1] ?? data.byteLength);
  const isCut = total > data.byteLength;
  if (type) {
    if (isCut) return { found: { problem: t("The picture is too large to be shown.") }, isCut };
    return { found: { picture: URL.createObjectURL(new Blob([data], { type })) }, isCut };
  }
  if (new Uint8Array(data.slice(0, 8000)).includes(0)) return { found: { problem: t("This is not a text file.") }, isCut: false };
  return { found: { text: new TextDecoder().decode(data) }, isCut };
}

function Csv({ text, path, isCut }: { text: string; path: string; isCut: boolean }) {
  const [{ head, rows }] = useState(() => {
    const all = parseCsv(text);
    if (isCut) all.pop(); // it may be incomplete
    return { head: all[0] ?? [], rows: all.slice(1) };
  });
  const sample = rows.slice(0, 50);
  const columns = head.map((name, index) => ({
    name,
    isNumber: sample.length > 0 && sample.every((row) => /^-?[\d.,eE+-]*$/.test(row[index] ?? "")),
  }));
  return (
    <>
      <p class="faint small table-head">{t("{0} rows, {1} columns", number(rows.length), number(head.length))}</p>
      <div class="preview">
        <Grid label={path} rows={rows.length} columns={columns} cell={(row, column) => rows[row]?.[column] ?? ""} />
      </div>
    </>
  );
}

function Text({ text, path }: { text: string; path: string }) {
  const language = LANGUAGES[extensionOf(path)];
  return (
    <div class="preview">
      {language && text.length < MAX_COLOURED ? (
        <Code code={text} language={language} isWhole />
      ) : (
        <Lines terminal={{ lines: text.split("\n").map((each) => ({ text: each.replace(/\r$/, ""), kind: "stdout", start: "" })) }} label={path} />
      )}
    </div>
  );
}

export function Preview({ id, path, onClose }: { id: string; path: string; onClose: () => void }) {
  const [shown, setShown] = useState<{ found: Found; isCut: boolean } | null>(null);
  const [isSource, setSource] = useState(false);
  useEffect(() => {
    let url = "";
    let isGone = false;
    setShown(null);
    read(id, path).then(
      (answer) => {
        if ("picture" in answer.found) url = answer.found.picture;
        if (isGone) URL.revokeObjectURL(url);
        else setShown(answer);
      },
      (error: Error) => !isGone && setShown({ found: { problem: error.message }, isCut: false }),
    );
    return () => {
      isGone = true;
      URL.revokeObjectURL(url);
    };
  }, [id, path]);
  const kind = TABLES.has(extensionOf(path)) ? "table" : PAGES.has(extensionOf(path)) ? "page" : "";
  const found = shown?.found;
  return (
    <Dialog title={path} onClose={onClose} wide>
      {!found ? (
        <Skeleton />
      ) : "problem" in found ? (
        <Empty icon="file" title={found.problem} />
      ) : "picture" in found ? (
        <img class="output-image" src={found.picture} alt={path} />
      ) : found.text && kind === "table" && !isSource ? (
        <Csv text={found.text} path={path} isCut={shown.isCut} />
      ) : found.text && kind === "page" && !isSource ? (
        <div class="preview">
          <Html html={found.text} isLight />
        </div>
      ) : (
        <Text text={found.text} path={path} />
      )}
      {shown?.isCut && <p class="faint small">{t("Only the beginning is shown.")}</p>}
      <div class="row end">
        {kind && found && "text" in found && (
          <div class="switch" role="group" aria-label={t("Show as")}>
            <button type="button" aria-pressed={!isSource} onClick={() => setSource(false)}>
              {kind === "table" ? t("Table") : t("Page")}
            </button>
            <button type="button" aria-pressed={isSource} onClick={() => setSource(true)}>
              {t("Source")}
            </button>
          </div>
        )}
        <span class="grow" />
        <Button icon="download" label={t("Download")} onClick={() => download(id, path)} />
      </div>
    </Dialog>
  );
}
