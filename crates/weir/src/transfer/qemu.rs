//! `qemu-img`, which knows every format of images: what is asked of it, and what it answers.

use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use url::Url;

use crate::terminal::failure::Failure;

const PROGRAM: &str = "qemu-img";

/// Answers of `qemu-img check` that are no reason to refuse an image: all is well, it has space that nobody uses, its
/// format cannot be checked.
const CHECK_PASSED: [i32; 3] = [0, 3, 63];

/// Formats by the end of a file's name; everything else is raw.
const FORMATS: [(&str, &str); 6] = [
    ("qcow2", "qcow2"),
    ("qed", "qed"),
    ("vdi", "vdi"),
    ("vhd", "vpc"),
    ("vhdx", "vhdx"),
    ("vmdk", "vmdk"),
];

/// What it found is damaged.
const CHECK_DAMAGED: i32 = 2;

/// Lines of its errors that are handed on.
const ERROR_LINES_MAX: usize = 5;

/// Seconds that it goes on trying to reach an export again, as when the process that serves it is replaced.
const RECONNECT_SECONDS: u32 = 30;

/// Sectors: the unit of all its sizes.
pub(super) const SECTOR_BYTES: u64 = 512;

/// What it says of one file of an image.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Info {
    /// Path of the file.
    pub(super) filename: String,
    /// Name of its format.
    pub(super) format: String,
    /// Size of the disk in bytes.
    pub(super) virtual_size: u64,
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    // A terminal interrupts its whole group: this one is ended by us, in order.
    command.process_group(0);
    command
}

fn not_started(error: &std::io::Error) -> Failure {
    if error.kind() == std::io::ErrorKind::NotFound {
        return Failure::new("qemu-img is not installed, and it is what reads and writes images")
            .with_help("apt-get install qemu-utils; elsewhere the package is called qemu-img");
    }
    Failure::new(format!("starting {PROGRAM}: {error}"))
}

async fn output(arguments: &[&str]) -> Result<Output, Failure> {
    command(arguments).output().await.map_err(|error| not_started(&error))
}

/// The end of what it wrote to standard error, in one line.
fn complaint(status: ExitStatus, errors: &[u8]) -> String {
    let text = String::from_utf8_lossy(errors);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return format!("{PROGRAM} ended with {status}");
    }
    lines[lines.len().saturating_sub(ERROR_LINES_MAX)..].join("; ")
}

fn text(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| {
        let shown = path.display();
        Failure::new(format!("{shown}: a path that is not UTF-8 cannot be given to {PROGRAM}"))
            .with_help("rename it, or make a link to it with another name")
    })
}

/// The files of an image: itself, then those that it is based on. Its format is guessed unless it is given.
pub(super) async fn info(path: &Path, format: Option<&str>) -> Result<Vec<Info>, Failure> {
    let path = text(path)?;
    let mut arguments = vec!["info", "--output=json", "--backing-chain"];
    arguments.extend(format.iter().flat_map(|format| ["-f", format]));
    arguments.extend(["--", path]);
    let output = output(&arguments).await?;
    if !output.status.success() {
        return Err(Failure::new(complaint(output.status, &output.stderr)));
    }
    let chain: Vec<Info> = serde_json::from_slice(&output.stdout)
        .map_err(|error| Failure::new(format!("{PROGRAM} info {path}: {error}")))?;
    if chain.is_empty() {
        return Err(Failure::new(format!("{PROGRAM} info {path}: it says nothing")));
    }
    Ok(chain)
}

/// Refuses an image whose tables lead nowhere: what lies behind the end of a truncated one would read as zeroes.
pub(super) async fn check(info: &Info) -> Result<(), Failure> {
    let Info { filename, format, .. } = info;
    let output = output(&["check", "--output=json", "-f", format, "--", filename]).await?;
    match output.status.code() {
        Some(code) if CHECK_PASSED.contains(&code) => Ok(()),
        Some(CHECK_DAMAGED) => {
            let first = String::from_utf8_lossy(&output.stderr);
            let first = first.lines().next().unwrap_or("").trim_start_matches("ERROR: ");
            Err(Failure::new(format!("{filename} is truncated or damaged: {first}")).with_help(
                format!("`qemu-img check {filename}` lists everything; get the image again"),
            ))
        }
        _ => {
            let why = complaint(output.status, &output.stderr);
            Err(Failure::new(format!("checking {filename}: {why}")))
        }
    }
}

/// How it says that a source could not be read, as far as that does not change.
pub(super) const READING_FAILED: &str = "error while reading";

/// Creates a blank image.
pub(super) async fn create(path: &Path, format: &str, size: u64) -> Result<(), Failure> {
    let size = size.to_string();
    let output = output(&["create", "-q", "-f", format, "--", text(path)?, &size]).await?;
    if output.status.success() {
        return Ok(());
    }
    let why = complaint(output.status, &output.stderr);
    Err(Failure::new(format!("creating {}: {why}", path.display())))
}

/// A file as it names it.
pub(super) fn file_node(path: &Path, format: &str) -> Result<Value, Failure> {
    use std::os::unix::fs::FileTypeExt;
    let is_device = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    let driver = if is_device { "host_device" } else { "file" };
    Ok(json!({ "driver": format, "file": { "driver": driver, "filename": text(path)? } }))
}

/// A disk of zeroes.
pub(super) fn zeroes_node() -> Value {
    json!({ "driver": "null-co", "size": u64::MAX >> 2, "read-zeroes": true })
}

/// An export as it names it.
pub(super) fn nbd_node(uri: &str) -> Result<Value, Failure> {
    let wrong = || Failure::new(format!("{uri} is no place that {PROGRAM} can reach"));
    let url = Url::parse(uri).map_err(|_| wrong())?;
    let export = url.path().trim_start_matches('/');
    let server = match (url.scheme(), url.host_str(), url.port()) {
        ("nbd+unix", _, _) => {
            let socket = url.query_pairs().find(|(key, _)| key == "socket").ok_or_else(wrong)?.1;
            json!({ "type": "unix", "path": socket })
        }
        ("nbd", Some(host), port) => {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            json!({ "type": "inet", "host": host, "port": port.unwrap_or(10809).to_string() })
        }
        ("nbds", ..) => {
            let help =
                "the process that serves it takes nothing but TLS: give it --nbd-socket as well";
            return Err(wrong().with_help(help));
        }
        _ => return Err(wrong()),
    };
    let reconnect = RECONNECT_SECONDS;
    Ok(json!({ "driver": "nbd", "server": server, "export": export, "reconnect-delay": reconnect }))
}

/// An export as the drive of a machine.
pub(super) fn drive(uri: &str) -> Result<String, Failure> {
    let node = nbd_node(uri)?;
    let mut drive = "if=virtio,format=raw,cache=none,discard=unmap".to_owned();
    let mut add = |key: &str, value: &Value| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        drive.push_str(&format!(",file.{key}={}", text.replace(',', ",,")));
    };
    for (key, value) in node.as_object().into_iter().flatten() {
        match value.as_object() {
            Some(server) => {
                server.iter().for_each(|(name, value)| add(&format!("{key}.{name}"), value));
            }
            None => add(key, value),
        }
    }
    Ok(drive)
}

/// A part of a node, in whole sectors: what lies behind the end of the node reads as zeroes.
fn window(node: &Value, offset: u64, len: u64) -> String {
    let len = len.next_multiple_of(SECTOR_BYTES);
    let window = json!({ "driver": "raw", "offset": offset, "size": len, "file": node });
    format!("json:{window}")
}

/// Bytes of a disk that are copied to the same place on another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    pub(super) source: &'a Value,
    pub(super) target: &'a Value,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The target reads as zeroes there, and zeroes need not be written.
    pub(super) target_is_zero: bool,
}

/// Copies a piece; `on_progress` hears of the part of it that is done, from 0 to 1. Dropping it ends it.
pub(super) async fn convert(
    piece: Piece<'_>,
    mut on_progress: impl FnMut(f64),
) -> Result<(), String> {
    let source = window(piece.source, piece.offset, piece.len);
    let target = window(piece.target, piece.offset, piece.len);
    let mut arguments = vec!["convert", "-p", "-n", "-t", "writeback", "-O", "raw"];
    if piece.target_is_zero {
        arguments.push("--target-is-zero");
    }
    arguments.extend(["--", &source, &target]);
    let started = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child: Child = started.map_err(|error| format!("starting {PROGRAM}: {error}"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let mut errors = Vec::new();
    let (_, _, status) = futures_util::join!(
        read_chunks(stdout, |chunk| {
            if let Some(part) = progress(chunk) {
                on_progress(part);
            }
        }),
        read_chunks(stderr, |chunk| errors.extend_from_slice(chunk)),
        child.wait(),
    );
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(complaint(status, &errors)),
        Err(error) => Err(format!("waiting for {PROGRAM}: {error}")),
    }
}

async fn read_chunks(from: Option<impl AsyncRead + Unpin>, mut take: impl FnMut(&[u8])) {
    let Some(mut from) = from else { return };
    let mut chunk = [0; 4096];
    // What cannot be read is only lost to messages; how it ended says the exit code.
    while let Ok(count @ 1..) = from.read(&mut chunk).await {
        take(&chunk[..count]);
    }
}

/// The last `(12.34/100%)` of its progress.
fn progress(chunk: &[u8]) -> Option<f64> {
    let text = String::from_utf8_lossy(chunk);
    let mut begun = text.rmatch_indices('(').map(|(at, _)| &text[at + 1..]);
    let percent = begun.find_map(|rest| rest.split_once("/100%)"))?.0;
    let percent: f64 = percent.trim().parse().ok()?;
    Some((percent / 100.0).clamp(0.0, 1.0))
}

/// The format that the name of a file stands for.
pub(super) fn format_of(path: &Path) -> &'static str {
    let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
    let known = FORMATS.iter().find(|(name, _)| end.eq_ignore_ascii_case(name));
    known.map_or("raw", |(_, format)| format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_follow_the_name() {
        for (path, format) in [
            ("disk.qcow2", "qcow2"),
            ("DISK.QCOW2", "qcow2"),
            ("disk.vhd", "vpc"),
            ("disk.img", "raw"),
            ("disk", "raw"),
            ("qcow2", "raw"),
        ] {
            assert_eq!(format_of(Path::new(path)), format, "{path}");
        }
    }

    #[test]
    fn progress_is_read_from_whatever_arrives_at_once() {
        assert_eq!(progress(b"    (0.00/100%)\r    (37.50/100%)\r"), Some(0.375));
        assert_eq!(progress(b"    (37.50/100%)\r    (40."), Some(0.375));
        assert_eq!(progress(b"00/100%)\r"), None);
        assert_eq!(progress(b"    (100.00/100%)\r\n"), Some(1.0));
        assert_eq!(progress(b""), None);
    }

    #[test]
    fn exports_are_named_by_their_parts() {
        let node = nbd_node("nbd+unix:///demo?socket=/run/a%20b%2Bc.sock").unwrap();
        assert_eq!(node["server"], json!({ "type": "unix", "path": "/run/a b+c.sock" }));
        assert_eq!(node["export"], "demo");
        let node = nbd_node("nbd://127.0.0.1:4711/demo").unwrap();
        assert_eq!(node["server"], json!({ "type": "inet", "host": "127.0.0.1", "port": "4711" }));
        assert_eq!(nbd_node("nbd://[::1]:4711/demo").unwrap()["server"]["host"], "::1");
        assert!(nbd_node("http://127.0.0.1/demo").is_err());
        assert!(nbd_node("").is_err());
    }

    #[test]
    fn a_drive_names_the_export_and_goes_on_when_it_is_back() {
        let drive = drive("nbd+unix:///demo?socket=/run/a,b.sock").unwrap();
        for part in [
            "if=virtio,",
            ",file.driver=nbd",
            ",file.export=demo",
            ",file.reconnect-delay=30",
            ",file.server.path=/run/a,,b.sock",
            ",file.server.type=unix",
        ] {
            assert!(drive.contains(part), "{part}: {drive}");
        }
    }

    #[test]
    fn windows_are_whole_sectors() {
        let window = window(&json!({ "driver": "null-co" }), 1 << 20, 1000);
        let value: Value = serde_json::from_str(window.strip_prefix("json:").unwrap()).unwrap();
        assert_eq!((value["offset"].as_u64(), value["size"].as_u64()), (Some(1 << 20), Some(1024)));
    }

    #[test]
    fn the_end_of_a_complaint_is_kept() {
        let status = std::os::unix::process::ExitStatusExt::from_raw(256);
        assert_eq!(complaint(status, b"one\n\n two \n"), "one; two");
        assert_eq!(complaint(status, b"1\n2\n3\n4\n5\n6\n"), "2; 3; 4; 5; 6");
        assert_eq!(complaint(status, b""), "qemu-img ended with exit status: 1");
    }
}
