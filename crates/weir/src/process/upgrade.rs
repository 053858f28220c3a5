//! Replacing the running program by one that was installed later, without closing the sockets that clients use.
//!
//! The process stays: it finishes what clients have in flight, closes its volumes into their journals, and executes the
//! new program with the listening sockets handed over the way systemd does it (`LISTEN_FDS`). Clients that reconnect
//! wait in the sockets' queues meanwhile. Sessions of clients come with them in a socket of their own, the last one, if
//! the new program says that it takes them.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use weir_device::VolumeId;
use weir_log::catalog::VolumeName;
use weir_node::{HANDED_OVER_FIRST, HandedOver, Was};

use crate::process::{signals, threads};
use crate::terminal::failure::Failure;
use crate::terminal::output::{print, say};

/// The program that this process runs, even if its file was replaced or removed.
const RUNNING: &str = "/proc/self/exe";

/// What the kernel adds to the path of a program whose file is gone.
const DELETED: &[u8] = b" (deleted)";

/// Names of the volumes that were served, with commas between them: what the next process does not serve, it closes.
/// A volume that was attached has a `+` before its name, or a `~` if writes of clients were refused: the next process
/// goes on serving it. One that was detached has a `-` there, and its identity behind a `:` where that is known: the
/// next process does not serve it, whatever the settings say. One in no store that failed is there a second time, with
/// a `?`, and behind a `:` each where its bytes are and why it failed: the next process does not serve it before
/// somebody has looked at it. Programs that do not know a mark leave out what has it.
const VOLUMES: &str = "WEIR_HANDED_OVER";

/// The number of the process that asks whether another program could take its place; `1` from those before it counted.
const ASKS: &str = "WEIR_ASKS_ABOUT_SESSIONS";

/// What a program says on standard output that takes sessions of clients, in the form that this one writes. Programs
/// that do not know them say nothing.
const TAKES_SESSIONS: &str = "takes sessions of version 2";

/// Says whether this program takes sessions of clients, if the one that runs asks.
pub(crate) fn answer_about_sessions() -> Result<(), Failure> {
    match std::env::var_os(ASKS) {
        Some(_) => print(&format!("{TAKES_SESSIONS}\n")),
        None => Ok(()),
    }
}

/// The number of a process that an older program writes, which only says that it asks.
const ASKS_UNNAMED: i32 = 1;

/// Has this program end with the one that asks, if one does. What it reads may never answer, and nobody else would end
/// it then. To be called before anything is read.
pub(crate) fn end_with_who_asks() -> Result<(), Failure> {
    let Some(asks) = std::env::var(ASKS).ok().and_then(|asks| asks.parse::<i32>().ok()) else {
        return Ok(());
    };
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::new(format!("ending with the program that asks: {error}")))?;
    // It may have ended before.
    match asks == ASKS_UNNAMED || getppid().map(Pid::as_raw_pid) == Some(asks) {
        true => Ok(()),
        false => Err(Failure::new("the program that asks has ended")),
    }
}

/// The program to be executed in the place of this one.
#[derive(Debug)]
pub(crate) struct Successor {
    pub(crate) program: PathBuf,
    pub(crate) takes_sessions: bool,
}

/// What may be before a name there.
const MARKS: [char; 5] = ['+', '~', '-', '!', '?'];

/// Bytes of the reason that is handed over with a volume that failed.
const WHY_BYTES_MAX: usize = 512;

/// Bytes of all of them. The kernel takes 128 KiB in a variable, and executes no program with more.
const WHYS_BYTES_MAX: usize = 1 << 14;

/// The volumes that the process before this one served.
pub(crate) fn handed_over() -> Vec<HandedOver> {
    read(&std::env::var(VOLUMES).unwrap_or_default())
}

fn read(text: &str) -> Vec<HandedOver> {
    let one = |word: &str| {
        let (mark, rest) = match word.strip_prefix(MARKS) {
            Some(rest) => word.split_at(word.len() - rest.len()),
            None => ("", word),
        };
        let (name, id) = rest.split_once(':').unwrap_or((rest, ""));
        let was = match mark {
            "+" => Was::Attached { read_only: false },
            "~" => Was::Attached { read_only: true },
            "-" => Was::Detached { volume: VolumeId::parse(id) },
            "!" => Was::Going { volume: VolumeId::parse(id)? },
            "?" => failed(id)?,
            _ => Was::Served,
        };
        // A part that is no name was not written by Weir, and is left out.
        Some(HandedOver { name: VolumeName::new(name).ok()?, was })
    };
    text.split(',').filter_map(one).collect()
}

/// What is behind the name of a volume that failed.
fn failed(text: &str) -> Option<Was> {
    let (place, why) = text.split_once(':')?;
    let byte = |at: usize| u8::from_str_radix(why.get(at..at + 2)?, 16).ok();
    let why: Vec<u8> = (0..why.len()).step_by(2).map_while(byte).collect();
    let why = String::from_utf8_lossy(&why).into_owned();
    Some(Was::Failed { place: u32::from_str_radix(place, 16).ok()?, why })
}

/// A reason in hexadecimal digits, which are no marks; no more than `left` bytes of it.
fn in_digits(why: &str, left: &mut usize) -> String {
    let whole = why.floor_char_boundary(WHY_BYTES_MAX.min(*left));
    *left -= whole;
    why.bytes().take(whole).map(|byte| format!("{byte:02x}")).collect()
}

fn written(volumes: &[HandedOver]) -> String {
    let mut left = WHYS_BYTES_MAX;
    let one = |HandedOver { name, was }: &HandedOver| match was {
        Was::Served => name.to_string(),
        Was::Attached { read_only: false } => format!("+{name}"),
        Was::Attached { read_only: true } => format!("~{name}"),
        Was::Detached { volume: None } => format!("-{name}"),
        Was::Detached { volume: Some(id) } => format!("-{name}:{id}"),
        Was::Going { volume } => format!("!{name}:{volume}"),
        Was::Failed { place, why } => format!("?{name}:{place:08x}:{}", in_digits(why, &mut left)),
    };
    volumes.iter().map(one).collect::<Vec<_>>().join(",")
}

fn arguments() -> impl Iterator<Item = OsString> {
    std::env::args_os().skip(1)
}

/// The file that this program was started from; another program may be there now.
fn installed() -> Result<PathBuf, Failure> {
    let failed = |error| Failure::new(format!("finding the program: {error}"));
    let path = std::fs::read_link(RUNNING).map_err(failed)?;
    let bytes = path.as_os_str().as_bytes();
    let bytes = bytes.strip_suffix(DELETED).unwrap_or(bytes);
    Ok(PathBuf::from(OsString::from_vec(bytes.to_vec())))
}

/// Asks the installed program whether it would run with the settings of this one. Blocks while it looks, for `limit` at
/// most. To be called where signals are held back.
pub(crate) fn check(limit: Duration) -> Result<Successor, Failure> {
    let program = installed()?;
    let mut command = Command::new(&program);
    command.args(arguments()).arg("--check").env(ASKS, std::process::id().to_string());
    let shown = program.display().to_string();
    let output = output(command, &shown, limit)?;
    if output.status.success() {
        let said = String::from_utf8_lossy(&output.stdout);
        let takes_sessions = said.lines().any(|line| line == TAKES_SESSIONS);
        return Ok(Successor { program, takes_sessions });
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let message = match said.trim() {
        "" => format!("{shown} does not run: it said nothing, and ended with {}", output.status),
        said => format!("{shown} does not run with these settings: {said}"),
    };
    Err(Failure::new(message))
}

/// What a program prints that ends within `limit`; after that it is killed.
fn output(command: Command, shown: &str, limit: Duration) -> Result<Output, Failure> {
    let failed = |error| Failure::new(format!("trying {shown}: {error}"));
    // Of this thread alone: the one of the process has clients and signals to attend to while a program starts.
    threads::runtime()?.block_on(async {
        let mut command = tokio::process::Command::from(command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = signals::delivered_to(|| command.kill_on_drop(true).spawn())?;
        let child = child.map_err(failed)?;
        match tokio::time::timeout(limit, child.wait_with_output()).await {
            Ok(output) => output.map_err(failed),
            Err(_) => {
                let message =
                    format!("trying {shown}: it did not end within {} s", limit.as_secs());
                Err(Failure::new(message).with_help(WAITS))
            }
        }
    })
}

const WAITS: &str = "it hangs, or a file that it reads does: the one with the settings, one that they name, as a \
                     certificate, or a file of a volume. Send the signal again once that is mended";

/// Executes `program` in the place of this one, or this one anew if that cannot be done. Returns only if neither can.
pub(crate) fn replace(program: PathBuf, sockets: Vec<OwnedFd>, volumes: &[HandedOver]) -> Failure {
    let copies: Vec<OwnedFd> = sockets.iter().filter_map(|fd| fd.try_clone().ok()).collect();
    let error = execute(program, sockets, volumes);
    say!("warning: {error}; going on with the program that ran so far");
    let error = execute(PathBuf::from(RUNNING), copies, volumes);
    Failure::new(error).with_help("start it again; what was acknowledged is in the journals")
}

fn execute(program: PathBuf, sockets: Vec<OwnedFd>, volumes: &[HandedOver]) -> String {
    let shown = program.display().to_string();
    let mut command = Command::new(program);
    command
        .args(arguments())
        .env("LISTEN_FDS", sockets.len().to_string())
        .env("LISTEN_PID", std::process::id().to_string())
        .env(VOLUMES, written(volumes))
        .env_remove("LISTEN_FDNAMES");
    let mappings = (HANDED_OVER_FIRST..)
        .zip(sockets)
        .map(|(child_fd, parent_fd)| FdMapping { parent_fd, child_fd })
        .collect();
    match command.fd_mappings(mappings) {
        Ok(command) => format!("executing {shown}: {}", command.exec()),
        Err(error) => format!("executing {shown}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let directory = tempfile::tempdir().expect("a directory");
        let number = directory.path().join("number");
        let hangs = format!("echo $$ > {}; exec sleep 300", number.display());
        let sh = |text: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", text]);
            command
        };
        // On a thread of its own: it holds signals back from then on.
        let thread = std::thread::spawn(move || {
            let said = output(sh("echo fine"), "sh", Duration::from_mins(1)).expect("it ends");
            assert_eq!(said.stdout, b"fine\n");
            output(sh(&hangs), "sh", Duration::from_secs(1)).expect_err("it does not end")
        });
        let late = thread.join().expect("it ends");
        assert!(late.message().contains("did not end within"), "{}", late.message());
        let number = std::fs::read_to_string(number).expect("it began");
        let line = format!("/proc/{}/cmdline", number.trim());
        // Nothing is there of one that was killed and is still to be waited for.
        let has_ended = || std::fs::read(&line).unwrap_or_default().is_empty();
        let mut looks = (0..1000).map(|_| std::thread::sleep(Duration::from_millis(10)));
        assert!(looks.any(|()| has_ended()), "it is killed");
    }

    #[test]
    fn what_is_handed_over_is_read_as_it_was_written() {
        let volume = |name, was| HandedOver { name: VolumeName::new(name).expect("valid"), was };
        let id = VolumeId([7; 16]);
        let volumes = [
            volume("a", Was::Served),
            volume("b", Was::Attached { read_only: false }),
            volume("c", Was::Attached { read_only: true }),
            volume("d", Was::Detached { volume: None }),
            volume("e", Was::Detached { volume: Some(id) }),
            volume("f", Was::Going { volume: id }),
        ];
        assert_eq!(written(&volumes), format!("a,+b,~c,-d,-e:{id},!f:{id}"));
        assert_eq!(read(&written(&volumes)), volumes);
        assert_eq!(read("../x,+,~,a"), volumes[..1]);
        assert_eq!(read(""), []);
        assert_eq!(read("a,%b:of a mark that comes later"), volumes[..1]);
    }

    #[test]
    fn why_a_volume_failed_is_handed_over_as_far_as_there_is_room() {
        let failed = |why: &str| HandedOver {
            name: VolumeName::new("a").expect("valid"),
            was: Was::Failed { place: 0x1f, why: why.to_owned() },
        };
        let one = [failed("fsync: \u{e9}, 5:")];
        assert!(written(&one).starts_with("?a:0000001f:6673796e63"), "{}", written(&one));
        assert_eq!(read(&written(&one)), one);
        assert_eq!(read("?a:0000001f:"), [failed("")]);
        assert_eq!(read("?a,?a:x:,?a:0000001f"), []);
        let many = written(&vec![failed(&"x".repeat(1 << 20)); 1000]);
        assert!(many.len() < 100_000, "{} bytes", many.len());
        assert_eq!(read(&many).len(), 1000, "that it failed has room in any case");
    }
}
