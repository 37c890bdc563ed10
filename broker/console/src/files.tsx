// The files of a session: look, take, put, remove.
import { useEffect, useRef, useState } from "preact/hooks";
import { filePath, json, request, sessionPath } from "./api";
import { sessions, watched } from "./live";
import { bytes, dateTime, t } from "./preferences";
import { download, Preview } from "./preview";
import { fileLink, go, route, sessionLink } from "./route";
import { ask, Button, Empty, Icon, report, say, Skeleton } from "./ui";

type Entry = { path: string; kind: "file" | "directory" | "symlink" | "other"; size: number; modified_at: string };
const nameOf = (path: string) => path.split("/").pop() ?? path;

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
  // Looking at the files of a session that sleeps would wake it.
  const isAsleep = sessions.value.get(id)?.state === "asleep";
  const done = watched.value?.executions.value.filter((each) => each.isComplete).length ?? 0;
  useEffect(() => {
    if (isOpen && !isAsleep) void load();
  }, [id, directory, isOpen, isAsleep, done]);
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
  if (isAsleep && entries === null)
    return (
      <Empty icon="moon" title={t("The session sleeps")}>
        <p>{t("Its files are shown when it is awake.")}</p>
        <Button label={t("Wake it")} onClick={load} />
      </Empty>
    );
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
      {shown && <Preview key={shown} id={id} path={shown} onClose={() => go(sessionLink(id))} />}
    </div>
  );
}
