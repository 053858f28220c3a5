//! What is left of the program that was asked whether it could take the place of one that runs, and what a process
//! hears while it loads its settings anew.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test of the whole program, outside any test module"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time for what has to come.
const PATIENCE: Duration = Duration::from_secs(20);

/// The bit of SIGTERM in a mask of the kernel.
const TERMINATE: u64 = 1 << 14;

/// Processes that end with the test, however it ends.
struct Ends(Vec<u32>);

impl Drop for Ends {
    fn drop(&mut self) {
        for pid in &self.0 {
            // Most have ended.
            let _ = kill_process(number(*pid), Signal::KILL);
        }
    }
}

#[test]
fn a_program_that_was_asked_ends_with_the_one_that_asks() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("weir.toml");
    std::fs::write(&config, "").unwrap();
    let mut server = serve(directory.path(), &config);
    let pid = server.id();
    let mut ends = Ends(vec![pid]);
    std::fs::remove_file(&config).unwrap();
    let status = Command::new("mkfifo").arg(&config).status().unwrap();
    assert!(status.success());
    tell(pid, Signal::USR2);
    let asked = came(|| children(pid).into_iter().find(|child| is_check(*child)));
    ends.0.push(asked);
    assert_eq!(blocked(asked) & TERMINATE, 0, "it can be ended as any other program");
    tell(pid, Signal::TERM);
    let ended = server.wait().unwrap();
    came(|| (!is_check(asked)).then_some(()));
    ends.0.clear();
    assert!(ended.success());
}

/// The kernel ends a program with the one that asks from the moment on at which it is told to: what began before has to
/// be looked at, or a check whose file never answers stays for ever.
#[test]
fn a_program_ends_that_was_asked_by_one_that_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("weir.toml");
    std::fs::write(&config, "").unwrap();
    let check = |asks: u32| {
        let mut command = command(directory.path(), &config);
        command.arg("--check").env("WEIR_ASKS_ABOUT_SESSIONS", asks.to_string());
        command.output().unwrap()
    };
    let own = std::process::id();
    // Its parent is another process than the one that asks.
    let orphan = check(own + 1);
    let said = String::from_utf8_lossy(&orphan.stderr);
    assert_eq!(orphan.status.code(), Some(1), "{said}");
    assert!(said.contains("the program that asks has ended"), "{said}");
    assert!(check(own).status.success());
    assert!(check(1).status.success(), "an older program does not say which one it is");
}

/// Settings of a volume that is offered over TCP to these, and of what `more` says.
fn offered(directory: &Path, allow: &str, more: &str) -> String {
    let image = directory.join("one.raw");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    format!(
        "[nbd]\nlisten = \"127.0.0.1:0\"\n[[volumes]]\nname = \"one\"\nfile.path = \"{}\"\n{allow}\n{more}",
        image.display()
    )
}

/// Whether a client without a certificate gets the volume at this address.
fn is_let_in(address: &str) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    let mut ask = 3_u32.to_be_bytes().to_vec();
    ask.extend(b"IHAVEOPT");
    ask.extend([0, 0, 0, 1, 0, 0, 0, 3]);
    ask.extend(b"one");
    stream.write_all(&ask).unwrap();
    stream.read_exact(&mut [0; 10]).is_ok()
}

/// A reload waits for a server that says nothing: nobody is let in by that who is taken off a list meanwhile.
#[test]
fn who_is_taken_off_a_list_does_not_stay_let_in_while_a_volume_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let (config, silent) = (directory.path().join("weir.toml"), directory.path().join("silent"));
    let server = UnixListener::bind(&silent).unwrap();
    let write = |text: String| std::fs::write(&config, text).unwrap();
    write(offered(directory.path(), "", ""));
    let (mut process, mut ends, said) = started(command(directory.path(), &config));
    let (pid, address) = (process.id(), &said.address());
    assert!(is_let_in(address));
    let far = format!(
        "[[volumes]]\nname = \"far\"\nremote.uri = \"nbd+unix:///far?socket={}\"\n",
        silent.display()
    );
    write(offered(directory.path(), "", &far));
    tell(pid, Signal::HUP);
    // It is being opened from now on.
    let connection = server.accept().unwrap();
    write(offered(directory.path(), "allow = [\"alice\"]", &far));
    tell(pid, Signal::HUP);
    came(|| (!is_let_in(address)).then_some(()));
    assert_eq!(said.find("the configuration is loaded"), None, "what is opened has not answered");
    tell(pid, Signal::TERM);
    assert!(process.wait().unwrap().success(), "{said:?}");
    ends.0.clear();
    drop(connection);
}

/// Nor is somebody while the program that is to take the place of this one is asked, and does not answer.
#[test]
fn who_is_taken_off_a_list_does_not_stay_let_in_while_a_replacement_is_considered() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (config, program, next) = (path("weir.toml"), path("weir"), path("next"));
    std::fs::copy(env!("CARGO_BIN_EXE_weir"), &program).unwrap();
    std::fs::write(&config, offered(directory.path(), "", "")).unwrap();
    let (mut process, mut ends, said) = started(command_of(&program, directory.path(), &config));
    let (pid, address) = (process.id(), &said.address());
    assert!(is_let_in(address));
    std::fs::write(&next, "#!/bin/sh\nexec sleep 300\n").unwrap();
    std::fs::set_permissions(&next, std::fs::metadata(&program).unwrap().permissions()).unwrap();
    std::fs::rename(&next, &program).unwrap();
    tell(pid, Signal::USR2);
    ends.0.push(came(|| children(pid).first().copied()));
    std::fs::write(&config, offered(directory.path(), "allow = [\"alice\"]", "")).unwrap();
    tell(pid, Signal::HUP);
    came(|| (!is_let_in(address)).then_some(()));
    assert_eq!(said.find("the program that runs serves on"), None, "it is still considered");
    tell(pid, Signal::TERM);
    assert!(process.wait().unwrap().success(), "{said:?}");
    ends.0.clear();
}

/// A process that runs, and what it says.
fn started(mut command: Command) -> (Child, Ends, Said) {
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    let (ends, said) = (Ends(vec![process.id()]), Said::of(&mut process));
    (process, ends, said)
}

/// What a process says.
#[derive(Clone, Debug, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    fn of(process: &mut Child) -> Self {
        let said = Self::default();
        let (lines, says) = (BufReader::new(process.stderr.take().unwrap()).lines(), said.clone());
        std::thread::spawn(move || {
            lines.for_each(|line| says.0.lock().unwrap().push(line.unwrap()));
        });
        said
    }

    /// What follows these words in a line.
    fn find(&self, what: &str) -> Option<String> {
        let said = self.0.lock().unwrap();
        said.iter().find_map(|line| line.strip_prefix(what).map(str::to_owned))
    }

    /// Where it listens.
    fn address(&self) -> String {
        came(|| self.find("listening at nbd://")).trim_end_matches('/').to_owned()
    }
}

/// `weir serve` with these settings.
fn command(directory: &Path, config: &Path) -> Command {
    command_of(Path::new(env!("CARGO_BIN_EXE_weir")), directory, config)
}

fn command_of(program: &Path, directory: &Path, config: &Path) -> Command {
    let mut command = Command::new(program);
    let is_setting = |name: &str| name.starts_with("WEIR_") && name != "WEIR_MUTANT";
    for (name, _) in std::env::vars().filter(|(name, _)| is_setting(name)) {
        command.env_remove(name);
    }
    command.env("WEIR_DATA_DIR", directory.join("data")).arg("serve").arg("--config").arg(config);
    command.stdin(Stdio::null());
    command
}

fn serve(directory: &Path, config: &Path) -> Child {
    let mut server = command(directory, config).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("listening at ")));
    // Whatever it says later is read, so that it can be said.
    std::thread::spawn(move || lines.count());
    server
}

fn tell(pid: u32, signal: Signal) {
    kill_process(number(pid), signal).unwrap();
}

fn number(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

/// What `look` finds, in time.
fn came<T>(look: impl Fn() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "it did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let of_task =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
    let numbers = of_task.collect::<Vec<_>>().join(" ");
    numbers.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

/// Whether this is a program that checks its settings, and has not ended.
fn is_check(pid: u32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.ends_with(b"--check\0")
}

fn blocked(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap()
}
