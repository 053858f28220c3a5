//! What the proxy does to its connections, and the commands that change it.

use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::socket::Socket;

/// Nothing is cut.
const NEVER: u64 = u64::MAX;

pub(crate) struct Control {
    delay_us: AtomicU64,
    refuses: AtomicBool,
    /// Bytes after which connections are cut: those of clients, those of the server.
    left: [AtomicU64; 2],
    stalled_until: Mutex<Option<Instant>>,
    /// Both ends of every connection since the last cut.
    sockets: Mutex<Vec<Socket>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Control {
    pub(crate) fn new(delay_us: u64) -> Self {
        Self {
            delay_us: AtomicU64::new(delay_us),
            refuses: AtomicBool::new(false),
            left: [const { AtomicU64::new(NEVER) }; 2],
            stalled_until: Mutex::default(),
            sockets: Mutex::default(),
        }
    }

    pub(crate) fn obey(&self, line: &str) -> Result<()> {
        let mut words = line.split_whitespace();
        let command = words.next().context("an empty line")?;
        let word = words.next();
        let number = || -> Result<u64> {
            let text = word.with_context(|| format!("{command} lacks its number"))?;
            text.parse().with_context(|| format!("{text:?} is no number"))
        };
        match (command, word) {
            ("delay", _) => self.delay_us.store(number()?, Ordering::Relaxed),
            ("cut", None) => self.cut(),
            ("cut-after", _) => self.left[0].store(number()?, Ordering::Relaxed),
            ("cut-replies-after", _) => self.left[1].store(number()?, Ordering::Relaxed),
            ("stall", _) => {
                let until = Instant::now() + Duration::from_millis(number()?);
                *lock(&self.stalled_until) = Some(until);
            }
            ("refuse", Some("on")) => self.refuses.store(true, Ordering::Relaxed),
            ("refuse", Some("off")) => self.refuses.store(false, Ordering::Relaxed),
            _ => bail!("{line:?} is no command"),
        }
        Ok(())
    }

    pub(crate) fn refuses(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }

    pub(crate) fn delay(&self) -> Duration {
        Duration::from_micros(self.delay_us.load(Ordering::Relaxed))
    }

    /// The time until which nothing is passed on.
    pub(crate) fn stalled_until(&self) -> Option<Instant> {
        *lock(&self.stalled_until)
    }

    pub(crate) fn add(&self, client: &Socket, server: &Socket) -> Result<()> {
        lock(&self.sockets).extend([client.another()?, server.another()?]);
        Ok(())
    }

    pub(crate) fn cut(&self) {
        for socket in lock(&self.sockets).drain(..) {
            socket.shut(Shutdown::Both);
        }
    }

    /// How many of `bytes` may be passed on before everything is cut; all of them in most cases.
    pub(crate) fn allowed(&self, bytes: usize, is_from_client: bool) -> usize {
        let left = &self.left[usize::from(!is_from_client)];
        let before = left.load(Ordering::Relaxed);
        if before == NEVER {
            return bytes;
        }
        let allowed = usize::try_from(before).unwrap_or(usize::MAX).min(bytes);
        let after = if allowed < bytes { NEVER } else { before - allowed as u64 };
        left.store(after, Ordering::Relaxed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_obeyed_and_others_refused() {
        let control = Control::new(5);
        assert_eq!(control.delay(), Duration::from_micros(5));
        control.obey("delay 200").unwrap();
        assert_eq!(control.delay(), Duration::from_micros(200));
        control.obey("refuse on").unwrap();
        assert!(control.refuses());
        control.obey("stall 1000").unwrap();
        assert!(control.stalled_until().is_some());
        for wrong in ["", "delay", "delay x", "cut 5", "refuse", "dance"] {
            control.obey(wrong).unwrap_err();
        }
    }

    #[test]
    fn a_connection_is_cut_within_a_message_once() {
        let control = Control::new(0);
        assert_eq!(control.allowed(100, true), 100);
        control.obey("cut-after 150").unwrap();
        assert_eq!(control.allowed(500, false), 500, "that is the other direction");
        assert_eq!(control.allowed(100, true), 100);
        assert_eq!(control.allowed(100, true), 50);
        assert_eq!(control.allowed(100, true), 100, "once");
    }
}
