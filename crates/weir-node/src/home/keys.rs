//! Where an operator's keys come from: a file, a variable, or a command that asks a key service.
//!
//! All of them give the same text: keys of 64 hex digits, one per line. A key in the text is looked for by its name;
//! what is encrypted anew, or wrapped anew, takes the first one. The place is asked whenever an encrypted volume is
//! opened or made, and never for others.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::pipe;
use tokio::process::Command;
use weir_log::{KeyError, KeySource, Keys, LogError, WrappingKeys};
use weir_seal::WrappingKey;

use crate::error::NodeError;

/// Longest text that is read for keys, in bytes: room for a thousand keys.
const TEXT_BYTES_MAX: u64 = 64 << 10;

/// How long a place may take to give its keys: a key service that is asked across the network, with its own retries.
const DEADLINE: Duration = Duration::from_secs(30);

/// Pause before a pipe that nobody writes to is read again.
const PIPE_PAUSE: Duration = Duration::from_millis(50);

/// Most bytes of a command's standard error that an error message shows.
const COMPLAINT_BYTES_MAX: u64 = 4 << 10;

/// Permissions that a key file must not have: only its owner and its group may use it.
const OTHERS: u32 = 0o007;

/// Where keys are.
#[derive(Clone, PartialEq, Eq)]
pub enum KeyPlace {
    /// A file.
    File(PathBuf),
    /// A variable, with its value.
    Variable {
        /// Its name.
        name: &'static str,
        /// The keys.
        text: String,
    },
    /// A command for `sh`, which prints them.
    Command(String),
}

impl std::fmt::Debug for KeyPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.place())
    }
}

impl KeyPlace {
    /// Keys of this place, if there is one.
    #[must_use]
    pub fn keys_of(place: Option<Self>) -> Keys {
        place.map_or_else(Keys::default, |place| Keys::from(Arc::new(place)))
    }

    /// Whether there are keys, where asking for them changes nothing.
    ///
    /// # Errors
    /// [`NodeError::Log`] with what is wrong with the place.
    pub async fn check(&self) -> Result<(), NodeError> {
        if self.can_be_looked_at() {
            self.read().await.map_err(LogError::Key)?;
        }
        Ok(())
    }

    async fn text(&self) -> Result<Text, String> {
        match self {
            Self::File(path) => of_file(path).await.map_err(|error| error.to_string())?,
            Self::Variable { text, .. } => Ok(Text(text.clone().into_bytes())),
            Self::Command(command) => printed_by(command).await,
        }
    }

    async fn read(&self) -> Result<Vec<WrappingKey>, KeyError> {
        let failed = |reason| KeyError::Source { place: self.place(), reason };
        let text = match tokio::time::timeout(DEADLINE, self.text()).await {
            Ok(text) => text.map_err(failed)?,
            Err(_) => return Err(failed(format!("no answer in {} s", DEADLINE.as_secs()))),
        };
        let keys = std::str::from_utf8(&text.0).map_err(|_| failed("it is no text".to_owned()))?;
        WrappingKey::parse_all(keys).map_err(|error| failed(error.to_string()))
    }
}

impl KeySource for KeyPlace {
    fn place(&self) -> String {
        match self {
            Self::File(path) => format!("key file {}", path.display()),
            Self::Variable { name, .. } => format!("variable {name}"),
            Self::Command(command) => format!("key command {command:?}"),
        }
    }

    fn keys(&self) -> WrappingKeys<'_> {
        Box::pin(self.read())
    }

    /// A file or a variable can. A pipe gives its keys once, and the service that a command asks may be away for the
    /// moment.
    fn can_be_looked_at(&self) -> bool {
        match self {
            Self::File(path) => {
                !std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
            }
            Self::Variable { .. } => true,
            Self::Command(_) => false,
        }
    }
}

/// A text that may hold keys. Its memory is wiped when it is dropped.
struct Text(Vec<u8>);

impl Drop for Text {
    fn drop(&mut self) {
        weir_seal::wipe(&mut self.0);
    }
}

/// What a file holds, or what comes out of a pipe: a shell gives one for `<(command)`.
async fn of_file(path: &Path) -> std::io::Result<Result<Text, String>> {
    let metadata = tokio::fs::metadata(path).await?;
    if metadata.is_file() && metadata.mode() & OTHERS != 0 {
        let (mode, path) = (metadata.mode() & 0o777, path.display());
        return Ok(Err(format!(
            "everybody on this host may read it (mode {mode:03o}): chmod o= {path}, and take new keys if somebody did"
        )));
    }
    if !metadata.file_type().is_fifo() {
        return Ok(all_of(tokio::fs::File::open(path).await?).await);
    }
    // Opening it as a file would hold a thread for as long as nobody writes to it.
    let mut pipe = pipe::OpenOptions::new().open_receiver(path)?;
    loop {
        let text = all_of(&mut pipe).await;
        match &text {
            // Without a writer it reads as if it had ended.
            Ok(Text(bytes)) if bytes.is_empty() => tokio::time::sleep(PIPE_PAUSE).await,
            _ => return Ok(text),
        }
    }
}

async fn all_of(from: impl AsyncRead + Unpin) -> Result<Text, String> {
    // As long as the longest text: a vector that grows would leave unwiped copies behind.
    let mut text = Text(Vec::with_capacity(2 * usize::try_from(TEXT_BYTES_MAX).unwrap_or(0)));
    let read = from.take(TEXT_BYTES_MAX + 1).read_to_end(&mut text.0).await;
    match read.map_err(|error| error.to_string())? as u64 {
        ..=TEXT_BYTES_MAX => Ok(text),
        _ => Err(format!("more than {} KiB", TEXT_BYTES_MAX >> 10)),
    }
}

/// What a command prints. It is killed when it is not waited for any more.
async fn printed_by(command: &str) -> Result<Text, String> {
    let mut child = Command::new("sh");
    child.arg("-c").arg(command).kill_on_drop(true);
    child.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().map_err(|error| format!("it cannot be started: {error}"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let printed = async {
        match stdout {
            Some(stdout) => all_of(stdout).await,
            None => Err("it has no standard output".to_owned()),
        }
    };
    let complaint = async {
        let mut bytes = Vec::new();
        if let Some(mut stderr) = stderr {
            // If it cannot be read, only the error message is shorter.
            let _ = (&mut stderr).take(COMPLAINT_BYTES_MAX).read_to_end(&mut bytes).await;
            let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
        }
        String::from_utf8_lossy(&bytes).trim().to_owned()
    };
    // A command that prints without end is not waited for: `all_of` stops reading it.
    let (printed, complaint) = {
        let mut complaint = std::pin::pin!(complaint);
        let mut printed = std::pin::pin!(printed);
        tokio::select! {
            biased;
            text = &mut printed => {
                let text = text?;
                (text, complaint.await)
            }
            complaint = &mut complaint => (printed.await?, complaint),
        }
    };
    let status = child.wait().await.map_err(|error| error.to_string())?;
    match (status.success(), complaint.lines().last()) {
        (true, _) => Ok(printed),
        (false, Some(line)) => Err(format!("it ended with {status}: {line}")),
        (false, None) => Err(format!("it ended with {status}")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn command(text: &str) -> KeyPlace {
        KeyPlace::Command(text.to_owned())
    }

    async fn error(place: KeyPlace) -> String {
        place.read().await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn every_place_gives_the_same_keys() {
        let directory = tempfile::tempdir().unwrap();
        let (path, key) = (directory.path().join("keys"), "0f".repeat(32));
        std::fs::write(&path, format!("# mine\n{key}\n{}\n", "ab".repeat(32))).unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
        mode(0o644).unwrap();
        let refused = error(KeyPlace::File(path.clone())).await;
        assert!(refused.contains("(mode 644): chmod o= /"), "{refused}");
        mode(0o640).unwrap();
        let name = "WEIR_KEY";
        for place in [
            KeyPlace::File(path.clone()),
            KeyPlace::Variable { name, text: std::fs::read_to_string(&path).unwrap() },
            command(&format!("echo asking >&2; cat {}", path.display())),
        ] {
            let keys = place.read().await.unwrap();
            let ids: Vec<_> = keys.iter().map(WrappingKey::id).collect();
            let expected = [[0x0f; 32], [0xab; 32]].map(|bytes| WrappingKey::of(bytes).id());
            assert_eq!(ids, expected, "{place:?}");
            assert!(!format!("{place:?}").contains(&key));
        }
    }

    #[tokio::test]
    async fn a_check_reads_what_can_be_read_again_and_runs_no_command() {
        let variable = |text: &str| KeyPlace::Variable { name: "WEIR_KEY", text: text.to_owned() };
        variable(&"0f".repeat(32)).check().await.unwrap();
        variable("garbage").check().await.unwrap_err();
        KeyPlace::File("/nowhere/key".into()).check().await.unwrap_err();
        command("false").check().await.unwrap();
    }

    #[tokio::test]
    async fn a_place_that_gives_no_key_is_named_with_the_reason() {
        let gone = error(KeyPlace::File("/nowhere/key".into())).await;
        assert!(gone.contains("key file /nowhere/key gives no key: No such file"), "{gone}");
        for (text, reason) in [
            ("echo denied >&2; exit 3", "exit status: 3: denied"),
            ("exit 1", "exit status: 1"),
            ("true", "it holds no key"),
            ("echo hello", "line 1 is no key"),
            ("printf '\\377\\376'", "it is no text"),
            ("yes", "more than 64 KiB"),
            ("kill -9 $$", "signal: 9"),
        ] {
            let error = error(command(text)).await;
            assert!(error.contains(reason) && error.contains("key command"), "{text}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_hangs_is_given_up() {
        // Time is the runtime's: it jumps to the deadline as soon as nothing else can happen.
        let error = error(command("sleep 600")).await;
        assert!(error.contains("no answer in 30 s"), "{error}");
    }
}
