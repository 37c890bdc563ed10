// The files of a session: look, take, put, remove.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, filePath, json, request, save, sessionPath } from "./api";
import { watched } from "./live";
import { Lines } from "./output";
import { bytes, dateTime, t } from "./preferences";
import { fileLink, go, route, sessionLink } from "./route";
import { ask, Button, Dialog, Empty, Icon, report, say, Skeleton } from "./ui";

type Entry = { path: string; kind: "file" | "directory" | "symlink" | "other"; size: number; modified_at: string };
const PREVIEW_BYTES = 1024 * 1024;
const PICTURES: Record<string, string> = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp", svg: "image/svg+xml" };
const nameOf = (path: string) => path.split("/").pop() ?? path;

function Preview({ id, path, onClose }: { id: string; path: string; onClose: () => void }) {
  const [text, setText] = useState<string[] | null>(null);
  const [picture, setPicture] = useState("");
  const [problem, setProblem] = useState("");
  const [isCut, setCut] = useState(false);
  useEffect(() => {
    let url = "";
    const read = async () => {
      const type = PICTURES[path.split(".").pop()!.toLowerCase()];
      const answer = await request("GET", filePath(id, path), undefined, type ? {} : { Range: `bytes=0-${PREVIEW_BYTES - 1}` });
      const data = await answer.arrayBuffer();
      if (type) {
        url = URL.createObjectURL(new Blob([data], { type }));
        setPicture(url);
        return;
      }
      const total = Number(answer.headers.get("Content-Range")?.split("/")[1] ?? data.byteLength);
      setCut(total > data.byteLength);
      if (new Uint8Array(data.slice(0, 8000)).includes(0)) setProblem(t("This is not a text file."));
      else setText(new TextDecoder().decode(data).split("\n"));
    };
    read().catch((error: Error) => {
      if (error instanceof ApiError && error.status === 416) setText([]);
      else setProblem(error.message);
    });
    return () => URL.revokeObjectURL(url);
  }, [id, path]);
  return (
    <Dialog title={path} onClose={onClose} wide>
      {problem ? (
        <Empty icon="file" title={problem} />
      ) : picture ? (
        <img class="output-image" src={picture} alt={path} />
      ) : text === null ? (
        <Skeleton />
      ) : (
        <div class="preview">
          <Lines terminal={{ lines: text.map((each) => ({ text: each, kind: "stdout", start: "" })) }} label={path} />
        </div>
      )}
      {isCut && <p class="faint small">{t("Only the beginning is shown.")}</p>}
      <div class="row end">
        <Button icon="download" label={t("Download")} onClick={() => download(id, path)} />
      </div>
    </Dialog>
  );
}

async function download(id: string, path: string) {
  save(await (await request("GET", filePath(id, path))).blob(), nameOf(path));
}

export function Files({ id, isOpen }: { id: string; isOpen: boolean }) {
  const [directory, setDirectory] = useState("");
  const [entries, setEntries] = useState<Entry[] | null>(null);
  const [problem, setProblem] = useState("");
  const [isOver, setOver] = useState(false);
  const [progress, setProgress] = useState("");
  const picker = useRef<HTMLInputElement>(null);
  const shown = route.value.session === id ? route.value.file : undefined;
  const load = () =>
    json<{ entries: Entry[] }>("GET", `${sessionPath(id)}/files?path=${encodeURIComponent(directory)}`).then(
      ({ entries: found }) => {
        setProblem("");
        setEntries(found.sort((a, b) => Number(b.kind === "directory") - Number(a.kind === "directory") || a.path.localeCompare(b.path)));
      },
      (error: Error) => setProblem(error.message),
    );
  const done = watched.value?.executions.value.filter((each) => each.isComplete).length ?? 0;
  useEffect(() => {
    if (isOpen) void load();
  }, [id, directory, isOpen, done]);
  const put = async (files: Iterable<File>) => {
    for (const file of files) {
      setProgress(t("Uploading {0}", file.name));
      try {
        await request("PUT", filePath(id, directory ? `${directory}/${file.name}` : file.name), file, { "Content-Type": "application/octet-stream" });
        say(t("{0} is uploaded.", file.name));
      } catch (error) {
        report(error);
      }
    }
    setProgress("");
    await load();
  };
  if (!isOpen) return <p class="faint pad">{t("The session has ended. Its workspace can be used by a later session.")}</p>;
  const parts = directory ? directory.split("/") : [];
  return (
    <div
      class={isOver ? "files over" : "files"}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        void put([...(event.dataTransfer?.files ?? [])]);
      }}
    >
      <div class="side-head">
        <nav aria-label={t("Directory")} class="crumbs">
          <button type="button" onClick={() => setDirectory("")}>
            /data
          </button>
          {parts.map((part, index) => (
            <button key={index} type="button" onClick={() => setDirectory(parts.slice(0, index + 1).join("/"))}>
              / {part}
            </button>
          ))}
        </nav>
        <span class="grow" />
        <Button icon="refresh" label={t("Refresh")} iconOnly kind="ghost" onClick={load} />
        <Button icon="upload" label={t("Upload")} kind="plain" onClick={() => picker.current?.click()} />
        <input ref={picker} type="file" multiple hidden aria-label={t("Files to upload")} onChange={(event) => void put([...(event.currentTarget.files ?? [])])} />
      </div>
      {progress && (
        <p class="note" role="status">
          {progress}
        </p>
      )}
      {problem ? (
        <Empty icon="warn" title={problem} />
      ) : entries === null ? (
        <Skeleton />
      ) : entries.length === 0 ? (
        <Empty icon="folder" title={t("No files")}>
          <p>{t("Drop files here to upload them to /data.")}</p>
        </Empty>
      ) : (
        <ul class="entries">
          {entries.map((each) => (
            <li key={each.path}>
              <Icon name={each.kind === "directory" ? "folder" : "file"} />
              <button type="button" class="entry" title={dateTime(each.modified_at)} onClick={() => (each.kind === "directory" ? setDirectory(each.path) : go(fileLink(id, each.path)))}>
                {nameOf(each.path)}
              </button>
              <span class="faint small num">{each.kind === "file" ? bytes(each.size) : ""}</span>
              {each.kind === "file" && <Button icon="download" label={t("Download {0}", nameOf(each.path))} iconOnly kind="ghost" onClick={() => download(id, each.path)} />}
              <Button
                icon="trash"
                label={t("Delete {0}", nameOf(each.path))}
                iconOnly
                kind="ghost"
                onClick={async () => {
                  if (!(await ask(t("{0} is deleted for good.", each.path), t("Delete")))) return;
                  await request("DELETE", `${filePath(id, each.path)}${each.kind === "directory" ? "?recursive=true" : ""}`);
                  await load();
                }}
              />
            </li>
          ))}
        </ul>
      )}
      {shown && <Preview id={id} path={shown} onClose={() => go(sessionLink(id))} />}
    </div>
  );
}
