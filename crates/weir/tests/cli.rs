//! The command line by its exact words: what it prints, refuses and exits with. Nothing here needs an NBD client.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test of the whole program, outside any test module"
)]

#[path = "cli/left_journals.rs"]
mod left_journals;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};

/// A data directory of its own, and the command in it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let is_setting = |name: &str| name.starts_with("WEIR_") && name != "WEIR_MUTANT";
        for (name, _) in std::env::vars().filter(|(name, _)| is_setting(name)) {
            command.env_remove(name);
        }
        command.env("WEIR_DATA_DIR", self.path().join("data")).args(arguments);
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs to success; its standard output.
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = text(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        text(&output.stdout)
    }

    /// Runs to a failure with this exit code; its standard error.
    fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.starts_with("error: "), "{arguments:?}: {errors}");
        assert_eq!(text(&output.stdout), "", "{arguments:?}");
        errors
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The value of a string field in printed JSON.
fn field(json: &str, name: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(json).unwrap();
    value[name].as_str().unwrap().to_owned()
}

#[test]
fn volumes_are_created_listed_shown_and_deleted() {
    let place = Place::new();
    assert_eq!(place.ok(&["volume", "list"]), "NAME  SIZE  STATE  URI\n");
    assert_eq!(place.ok(&["volume", "list", "--output", "json"]), "[]\n");
    place.ok(&["volume", "create", "demo", "--size", "10G"]);
    place.ok(&["volume", "create", "a.b_c-9", "--size", "1"]);
    assert_eq!(
        place.ok(&["volume", "list"]),
        "NAME     SIZE      STATE   URI\n\
         a.b_c-9  1 B       closed\n\
         demo     10.0 GiB  closed\n"
    );
    let shown = place.ok(&["volume", "show", "demo", "--output", "json"]);
    let id = field(&shown, "id");
    assert_eq!(id.len(), 32);
    let expected = format!(
        "{{\n  \"name\": \"demo\",\n  \"id\": \"{id}\",\n  \"size_bytes\": 10737418240,\n  \
         \"state\": \"active\",\n  \"holder\": null,\n  \"holder_renews\": false,\n  \
         \"takeover\": \"manual\",\n  \"epoch\": 0,\n  \
         \"checkpoint_as_of\": null,\n  \"objects\": 0,\n  \"object_bytes\": 0,\n  \
         \"manifest\": 1,\n  \"origins\": [],\n  \"encryption\": null,\n  \"key\": null,\n  \
         \"process\": null,\n  \"serving\": null\n}}\n"
    );
    assert_eq!(shown, expected);
    place.ok(&["volume", "delete", "demo", "--yes"]);
    let errors = place.fails(1, &["volume", "show", "demo"]);
    assert!(errors.starts_with("error: there is no volume \"demo\" in file:///"), "{errors}");
    place.ok(&["volume", "create", "demo", "--size", "1M"]);
    let again = place.ok(&["volume", "show", "demo", "--output", "json"]);
    assert_ne!(field(&again, "id"), id, "a deleted identity is never used again");
}

#[test]
fn nothing_ends_because_nobody_reads_what_it_says() {
    let place = Place::new();
    let code = |arguments: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = place.command(arguments);
        // Log lines go the same way.
        command.env("WEIR_LOG", "trace").stderr(writer).stdout(Stdio::null());
        command.status().unwrap().code()
    };
    assert_eq!(code(&["up", "v", "--size", "1M", "--", "true"]), Some(0));
    assert_eq!(code(&["serve", "--check"]), Some(0));
    assert_eq!(code(&["volume", "show", "nobody"]), Some(1));
    assert_eq!(code(&["volume", "show", "nobody", "--output", "json"]), Some(1));
    assert_eq!(code(&["volume", "delete", "v"]), Some(2), "it asks, and nobody is there");
    assert_eq!(code(&["volume", "delete", "v", "--yes"]), Some(0));
    place.fails(1, &["volume", "show", "v"]);
}

/// A process that serves a volume.
fn serve(place: &Place, arguments: &[&str]) -> Child {
    let mut command = place.command(&["up"]);
    let mut process = command.args(arguments).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("serving ")), "{arguments:?}");
    process
}

#[test]
fn of_a_process_that_was_stopped_it_is_said_how_it_goes_on() {
    let place = Place::new();
    let mut process = serve(&place, &["v", "--size", "1M"]);
    rustix::process::kill_process(Pid::from_child(&process), Signal::STOP).unwrap();
    let there = format!("file://{}", place.path().join("there").display());
    let errors = [
        place.run(&["volume", "flush", "v"]).stderr,
        place.run(&["volume", "repair", "v", "--yes"]).stderr,
        place.run(&["replicate", "v", &there]).stderr,
    ];
    process.kill().unwrap();
    process.wait().unwrap();
    for said in errors.map(|said| text(&said)) {
        let way = format!("`kill -CONT {}`", process.id());
        assert!(said.contains("does not answer: it is silent") && said.contains(&way), "{said}");
    }
}

#[test]
fn a_replication_that_a_signal_ends_says_so_with_its_exit_code() {
    let place = Place::new();
    let there = format!("file://{}", place.path().join("there").display());
    let mut process = serve(&place, &["v", "--size", "1M"]);
    // It waits for the answer of a process that gives none, until the signal comes.
    rustix::process::kill_process(Pid::from_child(&process), Signal::STOP).unwrap();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut command = place.command(&["replicate", "v", &there]);
        let replicating = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(2));
        rustix::process::kill_process(Pid::from_child(&replicating), signal).unwrap();
        let output = replicating.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert_eq!(said, "error: interrupted: nothing was sent\nhelp: run it again to go on\n");
        assert_eq!(text(&output.stdout), "");
    }
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn only_whoever_makes_a_volume_creates_a_store() {
    let place = Place::new();
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("mistyped");
    let store = format!("file://{}", path.display());
    for verb in [
        &["volume", "list"][..],
        &["volume", "show", "v"],
        &["volume", "delete", "v", "--yes"],
        &["volume", "resize", "v", "2M"],
        &["volume", "set", "v", "--takeover", "auto"],
        &["volume", "flush", "v"],
        &["volume", "salvage", "v", "w"],
        &["volume", "repair", "v", "--yes"],
        &["snapshot", "list", "v"],
        &["snapshot", "create", "v@s"],
        &["snapshot", "rollback", "v@s", "--yes"],
        &["volume", "clone", "v@s", "w"],
        &["up", "v"],
    ] {
        let errors = place.fails(1, &[verb, &["--store", &store]].concat());
        assert!(errors.starts_with(&format!("error: there is no store at {store}\n")), "{errors}");
        assert!(errors.contains("help: "), "{errors}");
        assert!(!path.exists(), "{verb:?}");
    }
    // That of a new data directory has no volumes, which is no error of a listing.
    place.ok(&["volume", "list"]);
    let errors = place.fails(1, &["volume", "show", "v"]);
    assert!(errors.starts_with("error: there is no store at file:///"), "{errors}");
    let entries = std::fs::read_dir(place.path()).unwrap().flatten();
    let stores = entries.filter(|entry| entry.path().join("store").exists());
    assert_eq!(stores.count(), 0);
    place.ok(&["volume", "create", "v", "--size", "1M", "--store", &store]);
    assert!(place.ok(&["volume", "list", "--store", &store]).contains("closed"));
    // Whoever forgets the store of what is used here is told.
    place.ok(&["up", "v", "--store", &store, "--", "true"]);
    let errors = place.fails(1, &["volume", "flush", "v"]);
    assert!(errors.contains(&format!("with --store; used from here: {store}\n")), "{errors}");
}

#[test]
fn a_name_is_taken_once() {
    let place = Place::new();
    place.ok(&["volume", "create", "demo", "--size", "1M"]);
    let errors = place.fails(1, &["volume", "create", "demo", "--size", "1M"]);
    assert!(errors.contains("volume \"demo\" exists already in file:///"), "{errors}");
}

#[test]
fn deleting_asks_a_person_and_refuses_a_script() {
    let place = Place::new();
    place.ok(&["volume", "create", "demo", "--size", "1M"]);
    let errors = place.fails(2, &["volume", "delete", "demo"]);
    assert_eq!(
        errors,
        "error: deleting demo would ask, but nobody is there\n\
         help: pass --yes to delete without being asked\n"
    );
    place.ok(&["volume", "show", "demo"]);
}

#[test]
fn flags_without_a_value_take_words_from_the_environment() {
    let place = Place::new();
    let with = |arguments: &[&str], yes: &str| {
        place.command(arguments).env("WEIR_YES", yes).output().unwrap().status.code()
    };
    for yes in ["1", "true", "yes", "on"] {
        place.ok(&["volume", "create", "demo", "--size", "1M"]);
        assert_eq!(with(&["volume", "delete", "demo"], yes), Some(0), "{yes}");
    }
    place.ok(&["volume", "create", "demo", "--size", "2M"]);
    for no in ["0", "false", "perhaps", ""] {
        assert_eq!(with(&["volume", "delete", "demo"], no), Some(2), "{no:?}");
    }
    place.ok(&["snapshot", "create", "demo@cut"]);
    assert_eq!(with(&["snapshot", "rollback", "demo@cut"], "1"), Some(0));
    assert_eq!(with(&["volume", "resize", "demo", "1M", "--shrink"], "1"), Some(0));
}

/// `weir volume import - NAME --size SIZE` with these bytes on standard input.
fn import(place: &Place, name: &str, size: &str, bytes: &[u8]) -> Output {
    let mut command = place.command(&["volume", "import", "-", name, "--size", size]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.current_dir(place.path()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // It may end before it has read everything.
    let _ = stdin.write_all(bytes);
    drop(stdin);
    child.wait_with_output().unwrap()
}

#[test]
fn bytes_come_from_standard_input_and_go_to_standard_output() {
    let place = Place::new();
    let bytes: Vec<u8> = (0..3_000_320_u32).map(|n| (n % 251) as u8).collect();
    let size = bytes.len().to_string();
    let imported = import(&place, "demo", &size, &bytes);
    assert!(imported.status.success(), "{}", text(&imported.stderr));
    let export = |from: &str| {
        let mut command = place.command(&["volume", "export", from, "-", "--output", "json"]);
        command.current_dir(place.path()).output().unwrap()
    };
    let output = export("demo");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(output.stdout == bytes, "{} bytes", output.stdout.len());
    let said: serde_json::Value = serde_json::from_str(&text(&output.stderr)).unwrap();
    assert_eq!(said["size_bytes"], bytes.len(), "standard output is the volume's alone");
    // Of a snapshot, whatever was written since.
    place.ok(&["snapshot", "create", "demo@cut"]);
    let zeroes = vec![0; bytes.len()];
    let mut command =
        place.command(&["volume", "import", "-", "demo", "--size", &size, "--overwrite"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&zeroes).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(export("demo").stdout == zeroes);
    assert!(export("demo@cut").stdout == bytes);
    assert!(text(&export("demo@never").stderr).contains("has no snapshot never"));
    assert!(!place.path().join("-").exists());
}

#[test]
fn a_stream_that_ends_early_is_an_error() {
    let place = Place::new();
    let short = import(&place, "short", "2M", &[7; 1 << 20]);
    assert_eq!(short.status.code(), Some(1));
    let errors = text(&short.stderr);
    assert!(errors.contains("standard input ended after 1.0 MiB of 2.0 MiB"), "{errors}");
    assert!(place.ok(&["volume", "list"]).contains("incomplete"));
    let long = import(&place, "long", "1M", &[7; 3 << 20]);
    assert_eq!(long.status.code(), Some(1));
    assert!(text(&long.stderr).contains("has more than the 1.0 MiB"), "{}", text(&long.stderr));
    let errors = place.fails(2, &["volume", "import", "-", "new"]);
    assert!(errors.contains("--size"), "{errors}");
    let errors =
        place.fails(2, &["volume", "import", "-", "new", "--size", "1M", "--format", "vdi"]);
    assert!(errors.contains("vdi cannot be read from standard input"), "{errors}");
    // A reader that goes away.
    place.ok(&["volume", "create", "demo", "--size", "64M"]);
    let mut command = place.command(&["volume", "export", "demo", "-"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut byte = [1];
    child.stdout.take().unwrap().read_exact(&mut byte).unwrap();
    assert_eq!(byte, [0]);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("standard output took"), "{}", text(&output.stderr));
}

#[test]
fn a_volume_is_renamed() {
    let place = Place::new();
    let created = place.ok(&["volume", "create", "demo", "--size", "1M", "--output", "json"]);
    place.ok(&["volume", "create", "other", "--size", "1M"]);
    let errors = place.fails(1, &["volume", "rename", "demo", "other"]);
    assert!(errors.contains("volume \"other\" exists already"), "{errors}");
    let renamed = place.ok(&["volume", "rename", "demo", "new", "--output", "json"]);
    assert_eq!(field(&renamed, "name"), "new");
    assert_eq!(field(&renamed, "id"), field(&created, "id"));
    let errors = place.fails(1, &["volume", "show", "demo"]);
    assert!(errors.contains("there is no volume \"demo\""), "{errors}");
}

#[test]
fn every_verb_prints_json_and_errors_are_json_then() {
    let place = Place::new();
    for arguments in [
        &["volume", "create", "demo", "--size", "2M"][..],
        &["volume", "set", "demo", "--takeover", "auto"],
        &["volume", "flush", "demo", "--remote", "--wait"],
        &["volume", "resize", "demo", "4M"],
        &["snapshot", "create", "demo@cut"],
        &["snapshot", "rollback", "demo@cut", "--yes"],
        &["snapshot", "list", "demo"],
        &["snapshot", "delete", "demo@cut"],
        &["volume", "compact", "demo"],
        &["volume", "check", "demo"],
        &["volume", "show", "demo"],
        &["volume", "rename", "demo", "other"],
        &["volume", "list"],
        &["volume", "delete", "other", "--yes"],
        &["limits", "show"],
        &["cache", "create", "16M"],
        &["cache", "show"],
        &["cache", "destroy", "--yes"],
        &["status"],
    ] {
        let printed = place.ok(&[arguments, &["--output", "json"]].concat());
        let value: serde_json::Value = serde_json::from_str(&printed).unwrap();
        assert!(value.is_object() || value.is_array(), "{arguments:?}: {printed}");
    }
    let fails = |arguments: &[&str], code: i32| {
        let output = place.command(arguments).env("WEIR_OUTPUT", "json").output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        let last = text(&output.stderr).lines().last().unwrap().to_owned();
        serde_json::from_str::<serde_json::Value>(&last).unwrap()
    };
    place.ok(&["volume", "create", "demo", "--size", "2M"]);
    let error = fails(&["volume", "show", "none"], 1);
    assert_eq!(error["kind"], "NotFound");
    assert!(error["error"].as_str().unwrap().starts_with("there is no volume"), "{error}");
    let error = fails(&["volume", "delete", "demo"], 2);
    assert_eq!((&error["kind"], error["help"].is_string()), (&"Invalid".into(), true), "{error}");
    let error = fails(&["volume", "resize", "demo"], 2);
    assert_eq!(error["kind"], "Invalid");
    assert!(error["error"].as_str().unwrap().contains("required"), "{error}");
    // A flag goes before the variable.
    let output = place.command(&["volume", "show", "none", "--output", "table"]);
    let mut output = output;
    let output = output.env("WEIR_OUTPUT", "json").output().unwrap();
    assert!(text(&output.stderr).starts_with("error: "), "{}", text(&output.stderr));
}

#[test]
fn a_usage_line_says_what_is_to_be_typed() {
    let place = Place::new();
    let errors = place.fails(2, &["volume", "create"]);
    assert!(
        errors.contains("Usage: weir volume create [OPTIONS] --size <SIZE> <NAME>"),
        "{errors}"
    );
    let output = place.command(&["volume", "create"]).env("WEIR_SIZE", "1M").output().unwrap();
    let errors = text(&output.stderr);
    assert!(errors.contains("Usage: weir volume create [OPTIONS] <NAME>"), "{errors}");
    let errors = place.fails(2, &["limits", "set"]);
    let one_of = "<--upload-bandwidth <SIZE>|--upload-requests <COUNT>|--drain <WHETHER>>";
    assert!(errors.contains(one_of), "{errors}");
    let errors = place.fails(2, &["snapshot", "create", "demo@a/b"]);
    assert!(errors.contains("snapshot name \"a/b\" is not valid"), "{errors}");
}

#[test]
fn shrinking_asks_a_person_and_growing_does_not() {
    let place = Place::new();
    place.ok(&["volume", "create", "demo", "--size", "4M"]);
    let errors = place.fails(1, &["volume", "resize", "demo", "8M", "--shrink"]);
    assert!(errors.contains("8.0 MiB is no smaller size: the volume has 4.0 MiB"), "{errors}");
    place.ok(&["volume", "resize", "demo", "8M"]);
    let errors = place.fails(2, &["volume", "resize", "demo", "1M", "--shrink"]);
    assert!(errors.contains("shrinking demo by 7.0 MiB would ask"), "{errors}");
    place.ok(&["volume", "resize", "demo", "1M", "--shrink", "--yes"]);
    assert!(place.ok(&["volume", "show", "demo"]).contains("1.0 MiB"));
}

#[test]
fn a_volume_is_not_created_for_a_port_that_is_taken() {
    let place = Place::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let errors =
        place.fails(1, &["up", "demo", "--size", "1M", "--nbd-listen", &address, "--", "true"]);
    assert!(errors.contains("listening on") && errors.contains(&address), "{errors}");
    assert_eq!(place.ok(&["volume", "list"]), "NAME  SIZE  STATE  URI\n");
}

#[test]
fn malformed_names_are_wrong_usage() {
    let place = Place::new();
    for (name, reason) in [
        ("", "it is empty"),
        ("a/b", "only letters, digits"),
        ("..", "begin with a letter or a digit"),
        ("../../etc/passwd", "only letters, digits"),
        (".hidden", "begin with a letter or a digit"),
        ("a b", "only letters, digits"),
        ("a\nb", "only letters, digits"),
        ("caf\u{e9}", "only letters, digits"),
        (&"x".repeat(65), "longer than 64 bytes"),
    ] {
        for verb in [&["volume", "create", "--size", "1M"][..], &["volume", "show"], &["up"]] {
            let mut arguments = verb.to_vec();
            arguments.extend(["--", name]);
            // For `up`, what follows `--` is the command.
            if verb == ["up"] {
                arguments = vec!["up", name];
            }
            let errors = place.fails(2, &arguments);
            assert!(errors.contains(reason), "{name:?}: {errors}");
        }
    }
    assert!(!place.path().join("data").exists(), "wrong usage touches nothing");
}

#[test]
fn malformed_sizes_are_wrong_usage() {
    let place = Place::new();
    for (size, reason) in [
        ("0", "it must be at least 1 byte"),
        ("16E", "at most 9223372036854771712 bytes"),
        ("18446744073709551616", "at most 9223372036854771712 bytes"),
        ("8E", "at most 9223372036854771712 bytes"),
        ("10X", "is no size: write bytes, or a number with K, M, G, T or P"),
        ("1.5", "is no size"),
        ("", "is no size"),
    ] {
        for verb in [&["volume", "create", "demo", "--size"][..], &["up", "demo", "--size"]] {
            let mut arguments = verb.to_vec();
            arguments.push(size);
            let errors = place.fails(2, &arguments);
            assert!(errors.contains(reason), "{size:?}: {errors}");
        }
    }
    let errors = place.fails(2, &["volume", "create", "demo", "--size", "-1"]);
    assert!(errors.contains("--size"), "{errors}");
}

#[test]
fn unknown_commands_and_flags_are_wrong_usage() {
    let place = Place::new();
    for arguments in [
        &["nonsense"][..],
        &["volume", "nonsense"],
        &["volume"],
        &["up"],
        &["up", "demo", "--nonsense"],
        &["up", "demo", "--nbd-socket", "s", "--nbd-listen", "127.0.0.1:0"],
        &["volume", "list", "--output", "xml"],
        &["completion", "nonsense"],
        &["volume", "list", "--log-format", "xml"],
    ] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stderr));
    }
    let mut command = place.command(&["volume", "list"]);
    let output = command.env("WEIR_LOG", "a=b=c").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("error: WEIR_LOG=\"a=b=c\" is not a filter"));
}

#[test]
fn up_creates_only_with_a_size_and_keeps_to_it() {
    let place = Place::new();
    let errors = place.fails(1, &["up", "demo", "--", "true"]);
    assert!(errors.contains("error: there is no volume \"demo\" in file:///"), "{errors}");
    assert!(errors.contains("help: `weir volume create demo --size 10G` creates it"), "{errors}");
    place.ok(&["up", "demo", "--size", "64M", "--", "true"]);
    place.ok(&["up", "demo", "--size", "64M", "--", "true"]);
    place.ok(&["up", "demo", "--", "true"]);
    let errors = place.fails(1, &["up", "demo", "--size", "65M", "--", "true"]);
    assert!(errors.contains("volume \"demo\" has 67108864 bytes, not 68157440"), "{errors}");
    assert!(errors.contains("weir volume resize demo"), "{errors}");
}

#[test]
fn the_command_gets_the_uri_and_its_exit_code_is_handed_on() {
    let place = Place::new();
    let output =
        place.run(&["up", "demo", "--size", "1M", "--", "sh", "-c", "echo $WEIR_URI; exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    let socket = place.path().join("data/nbd/demo.sock");
    let uri = format!("nbd+unix:///demo?socket={}\n", socket.display());
    assert_eq!(text(&output.stdout), uri, "standard output is the command's alone");
    assert!(text(&output.stderr).contains(&format!("serving {uri}")));
    assert!(!socket.exists());
    let code = |script: &str| place.run(&["up", "demo", "--", "sh", "-c", script]).status.code();
    assert_eq!(code("kill -9 $$"), Some(137));
    assert_eq!(code("true"), Some(0));
    assert_eq!(place.run(&["up", "demo", "--", "/nonexistent"]).status.code(), Some(127));
    assert_eq!(place.run(&["up", "demo", "--", "/"]).status.code(), Some(126));
}

#[test]
fn a_served_volume_is_seen_and_protected() {
    let place = Place::new();
    let weir = env!("CARGO_BIN_EXE_weir");
    let script = format!(
        "{weir} volume list --output json; {weir} volume flush demo --remote --wait && \
         {weir} volume flush demo && {weir} volume flush demo --remote; echo $?; \
         {weir} volume delete demo --yes; echo $?; {weir} up demo; echo $?"
    );
    let output = place.run(&["up", "demo", "--size", "1M", "--", "sh", "-c", &script]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let (json, codes) = out.split_once("]\n").unwrap();
    let list: serde_json::Value = serde_json::from_str(&format!("{json}]")).unwrap();
    let process = list[0]["process"].as_u64().unwrap();
    assert!(list[0]["uri"].as_str().unwrap().ends_with("data/nbd/demo.sock"), "{json}");
    assert_eq!(codes, "0\n1\n1\n", "{err}");
    let refusal =
        format!("error: volume \"demo\" is served by process {process} at nbd+unix:///demo");
    assert_eq!(err.matches(&refusal).count(), 2, "{err}");
}

#[test]
fn verbs_on_volumes_that_are_not_there() {
    let place = Place::new();
    place.ok(&["volume", "create", "other", "--size", "1M"]);
    for arguments in [
        &["volume", "show", "demo"][..],
        &["volume", "delete", "demo", "--yes"],
        &["volume", "flush", "demo"],
        &["volume", "flush", "demo", "--remote", "--wait"],
    ] {
        let errors = place.fails(1, arguments);
        assert!(errors.contains("there is no volume \"demo\""), "{errors}");
    }
}

#[test]
fn bad_places_are_named() {
    let place = Place::new();
    let file = place.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let file = file.to_str().unwrap();
    let errors = place.fails(1, &["up", "demo", "--size", "1M", "--data-dir", file, "--", "true"]);
    assert!(errors.contains(file), "{errors}");
    let errors = place.fails(1, &["volume", "list", "--store", "nonsense"]);
    assert!(errors.contains("store URL nonsense"), "{errors}");
    assert!(errors.contains("file:///"), "{errors}");
    let long = place.path().join("x".repeat(120));
    let long = long.to_str().unwrap();
    let errors = place.fails(1, &["up", "demo", "--size", "1M", "--data-dir", long, "--", "true"]);
    assert!(errors.contains("too long for a unix socket"), "{errors}");
    assert!(errors.contains("help: give a shorter path"), "{errors}");
    let arguments = ["up", "demo", "--size", "1M", "--nbd-listen", "0.0.0.0:0", "--", "true"];
    let errors = place.fails(1, &arguments);
    assert!(errors.contains("0.0.0.0:0 can be reached from other machines"), "{errors}");
    assert!(errors.contains("--insecure"), "{errors}");
    let arguments = ["up", "demo", "--size", "1M", "--nbd-socket", file, "--", "true"];
    let errors = place.fails(1, &arguments);
    assert!(errors.contains("is in use: it is not a socket"), "{errors}");
    assert_eq!(std::fs::read(file).unwrap(), b"x");
}

#[test]
fn flags_come_from_the_environment_too() {
    let place = Place::new();
    let mut command = place.command(&["volume", "create", "demo"]);
    command.env("WEIR_SIZE", "2M").env("WEIR_OUTPUT", "json");
    let output = command.output().unwrap();
    assert!(text(&output.stdout).contains("\"size_bytes\": 2097152"), "{output:?}");
}

/// One page for each command.
const PAGES: [&str; 56] = [
    "weir-cache-create.1",
    "weir-cache-destroy.1",
    "weir-cache-resize.1",
    "weir-cache-show.1",
    "weir-cache.1",
    "weir-completion.1",
    "weir-limits-set.1",
    "weir-limits-show.1",
    "weir-limits.1",
    "weir-man.1",
    "weir-pki-init.1",
    "weir-pki-issue.1",
    "weir-pki-list.1",
    "weir-pki-renew.1",
    "weir-pki-revoke.1",
    "weir-pki.1",
    "weir-replicate.1",
    "weir-serve.1",
    "weir-snapshot-create.1",
    "weir-snapshot-delete.1",
    "weir-snapshot-diff.1",
    "weir-snapshot-list.1",
    "weir-snapshot-rollback.1",
    "weir-snapshot.1",
    "weir-status.1",
    "weir-store-probe.1",
    "weir-store.1",
    "weir-trace-cache.1",
    "weir-trace-sim.1",
    "weir-trace.1",
    "weir-up.1",
    "weir-volume-attach.1",
    "weir-volume-check.1",
    "weir-volume-clone.1",
    "weir-volume-compact.1",
    "weir-volume-copy.1",
    "weir-volume-create.1",
    "weir-volume-delete.1",
    "weir-volume-detach.1",
    "weir-volume-export.1",
    "weir-volume-flatten.1",
    "weir-volume-flush.1",
    "weir-volume-import.1",
    "weir-volume-limit.1",
    "weir-volume-list.1",
    "weir-volume-promote.1",
    "weir-volume-rekey.1",
    "weir-volume-rename.1",
    "weir-volume-repair.1",
    "weir-volume-resize.1",
    "weir-volume-salvage.1",
    "weir-volume-set.1",
    "weir-volume-show.1",
    "weir-volume-warm.1",
    "weir-volume.1",
    "weir.1",
];

#[test]
fn completions_and_manual_pages_are_generated() {
    let place = Place::new();
    for (shell, mark) in
        [("bash", "complete -F _weir"), ("zsh", "#compdef weir"), ("fish", "complete -c weir")]
    {
        let completion = place.ok(&["completion", shell]);
        assert!(completion.contains(mark), "{shell}");
        assert!(completion.contains("rpo") && completion.contains("drain"), "{shell}");
        assert!(!completion.contains("batch-age"), "{shell}: it is derived");
        assert!(completion.contains("six-factor-alone"), "{shell}: policies of a cache");
    }
    assert!(place.ok(&["completion", "zsh"]).contains(":(auto off)"), "sizes that are words");
    assert!(place.ok(&["man"]).contains(".TH weir 1"));
    let directory = place.path().join("man");
    place.ok(&["man", directory.to_str().unwrap()]);
    let mut pages: Vec<_> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    pages.sort();
    assert_eq!(pages, PAGES);
    let page = std::fs::read_to_string(directory.join("weir-volume-create.1")).unwrap();
    assert!(page.contains("weir\\-volume\\-create"), "{page}");
}

#[test]
fn help_is_a_word_as_well() {
    let place = Place::new();
    assert_eq!(place.ok(&["help"]), place.ok(&["--help"]));
    assert_eq!(place.ok(&["help", "volume", "limit"]), place.ok(&["volume", "limit", "--help"]));
    assert_eq!(place.ok(&["volume", "help", "limit"]), place.ok(&["volume", "limit", "--help"]));
    assert!(place.fails(2, &["help", "nothing"]).contains("'nothing'"));
}

#[test]
fn help_shows_every_verb_and_every_flag_has_a_variable() {
    let place = Place::new();
    let help = place.ok(&["--help"]);
    for verb in ["up", "serve", "status", "volume", "limits", "cache", "pki", "completion", "man"] {
        assert!(help.contains(&format!("\n  {verb} ")), "{verb}");
    }
    every_flag_has_a_variable(&place.ok(&["up", "--help"]));
    every_flag_has_a_variable(&place.ok(&["serve", "--help"]));
}

fn every_flag_has_a_variable(help: &str) {
    let flags: Vec<&str> = help
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--"))
        .map(|line| line.split([' ', '=']).next().unwrap())
        .collect();
    assert!(flags.len() > 10, "{flags:?}");
    for flag in flags {
        let variable = format!("WEIR_{}", flag.to_uppercase().replace('-', "_"));
        assert!(help.contains(&format!("[env: {variable}")), "{flag}");
    }
}

#[test]
fn a_store_is_probed_and_the_exit_code_says_what_came_of_it() {
    let place = Place::new();
    let url = format!("file://{}/store", place.path().display());
    let table = place.ok(&["store", "probe", &url]);
    for check in ["create-only", "race", "listing", "ranges", "delete"] {
        assert!(table.contains(check), "{table}");
    }
    assert!(table.contains("may be used"), "{table}");
    let json = place.ok(&["store", "probe", &url, "--output", "json"]);
    assert!(json.contains("\"verdict\": \"usable\""), "{json}");
    assert!(json.contains("\"left_behind\": 0"), "{json}");
    let errors = place.fails(1, &["store", "probe", "s3://key:hunter2@bucket"]);
    assert!(errors.contains("AWS_ACCESS_KEY_ID") && !errors.contains("hunter2"), "{errors}");
    let errors = place.fails(1, &["store", "probe", "https://bucket.example.org"]);
    assert!(errors.contains("s3://bucket/prefix"), "{errors}");
}
