//! The certificates of a process in its status, and what is wrong with those that are in use all the same.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use weir_net::tls::{Holder, Tls, TlsStatus};

use crate::api::types::CertificateStatus;
use crate::serve::core::Core;

/// How long before its end a certificate is to be renewed.
const CERTIFICATE_NOTICE: Duration = Duration::from_hours(7 * 24);

/// The certificates that the process uses, by what they are for.
pub(crate) fn of(core: &Core) -> Vec<(&'static str, Holder)> {
    core.tls.as_ref().map(|tls| holders(&tls.status())).unwrap_or_default()
}

/// What is wrong with certificates and lists that are in use all the same.
pub(crate) fn troubles(tls: &Tls) -> Vec<String> {
    let (status, now) = (tls.status(), now());
    let all = dated(&status);
    let dates = all.iter().filter_map(|(role, holder)| wrong_date(role, holder, now));
    dates.chain(late_list(&status, now)).collect()
}

/// The same, and what is no trouble where it is meant.
pub(crate) fn warnings(tls: &Tls) -> Vec<String> {
    let mut warnings = troubles(tls);
    warnings.extend(other_authority(&tls.status()));
    warnings
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Says that clients which trust the same authorities do not get through to this server.
fn other_authority(status: &TlsStatus) -> Option<String> {
    let server = status.server.as_ref().filter(|_| status.server_is_of_others)?;
    Some(format!(
        "the server's certificate ({}) is of no authority in ca-cert.pem: clients that trust those alone refuse it. \
         That is right where it is from a public authority, and ca-cert.pem says who may come as a client",
        server.name
    ))
}

/// Which certificates had not run out when they were looked at last, by what they are for and their serial numbers.
#[derive(Debug, Default)]
pub(super) struct RunningOut(BTreeMap<(&'static str, String), bool>);

impl RunningOut {
    /// What is to be logged of certificates that ran out since. What was out when it was loaded was logged then.
    pub(super) fn look(&mut self, tls: &Tls) -> Vec<String> {
        self.look_at(&tls.status(), now())
    }

    fn look_at(&mut self, status: &TlsStatus, now: Duration) -> Vec<String> {
        let all = dated(status);
        let before = std::mem::take(&mut self.0);
        let mut told = Vec::new();
        for (role, holder) in all {
            let (key, is_out) = ((role, holder.serial.clone()), holder.expires <= now);
            if is_out && before.get(&key) == Some(&false) {
                told.extend(wrong_date(role, &holder, now));
            }
            self.0.insert(key, is_out);
        }
        told
    }
}

/// All whose dates count.
fn dated(status: &TlsStatus) -> Vec<(&'static str, Holder)> {
    let mut all = holders(status);
    all.extend(status.other_authorities.iter().cloned().map(|other| ("authority", other)));
    all
}

fn holders(status: &TlsStatus) -> Vec<(&'static str, Holder)> {
    let TlsStatus { authority, server, client, .. } = status.clone();
    let all = [("server", server), ("client", client), ("authority", Some(authority))];
    all.into_iter().filter_map(|(role, holder)| Some((role, holder?))).collect()
}

pub(super) fn row(role: &str, holder: &Holder) -> CertificateStatus {
    CertificateStatus {
        role: role.to_owned(),
        name: holder.name.clone(),
        serial: holder.serial.clone(),
        expires: holder.expires.as_secs(),
    }
}

/// Says that a certificate counts not yet or no more, or soon will not: when a tenth of its time is left, a week at
/// most.
fn wrong_date(role: &str, holder: &Holder, now: Duration) -> Option<String> {
    let certificate = format!("the {role}'s certificate ({})", holder.name);
    let date = |at: Duration| humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + at);
    if now < holder.begins {
        let begins = date(holder.begins);
        return Some(format!(
            "{certificate} is valid from {begins} on, and peers refuse it until then"
        ));
    }
    let left = holder.expires.saturating_sub(now);
    if left.is_zero() {
        let expired = date(holder.expires);
        return Some(format!("{certificate} expired at {expired}, and new peers refuse it"));
    }
    let notice = (holder.expires.saturating_sub(holder.begins) / 10).min(CERTIFICATE_NOTICE);
    (left < notice).then(|| {
        let unit = if left.as_secs() < 60 { 1 } else { 60 };
        let left = humantime::format_duration(Duration::from_secs(left.as_secs() / unit * unit));
        format!("{certificate} expires in {left}")
    })
}

/// Says that a list of what is revoked was to be renewed by now, if so. It counts on: a list that nobody renewed ends
/// no service, and lets nobody in again.
fn late_list(status: &TlsStatus, now: Duration) -> Option<String> {
    let renewal = status.revocations?.renewal.filter(|renewal| *renewal <= now)?;
    let renewal = humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + renewal);
    Some(format!(
        "the revocation list, ca-crl.pem, was to be renewed by {renewal}: it counts on, and what was revoked since \
         is not known"
    ))
}

#[cfg(test)]
mod tests {
    use weir_net::tls::{MinVersion, Revocations};

    use super::*;

    #[test]
    fn a_certificate_says_in_time_that_it_expires() {
        const DAY: u64 = 24 * 60 * 60;
        let holder = |days: u64| Holder {
            name: "node".to_owned(),
            serial: "01".to_owned(),
            begins: Duration::from_secs(1000 * DAY),
            expires: Duration::from_secs((1000 + days) * DAY),
        };
        let told = |days: u64, at_day: u64| {
            wrong_date("server", &holder(days), Duration::from_secs((1000 + at_day) * DAY))
        };
        assert_eq!(told(365, 357), None);
        let soon = "the server's certificate (node) expires in 6days";
        assert_eq!(told(365, 359).as_deref(), Some(soon));
        assert_eq!((told(10, 8), told(10, 9)), (None, None), "a short one is renewed late");
        for late in [365, 400] {
            let expired = told(365, late).expect("it has");
            assert!(expired.contains("(node) expired at 1973-09-27T00:00:00Z"), "{expired}");
        }
        let at = |seconds| wrong_date("server", &holder(365), Duration::from_secs(seconds));
        let early = at(1000 * DAY - 1).expect("it has not begun");
        assert!(early.contains("is valid from 1972-09-27T00:00:00Z on"), "{early}");
        let last = at(1365 * DAY - 5).expect("it ends");
        assert!(last.ends_with("expires in 5s"), "{last}");
    }

    #[test]
    fn a_list_of_revocations_says_that_it_is_late() {
        let name = || "test".to_owned();
        let zero = Duration::ZERO;
        let status = |revocations| TlsStatus {
            authority: Holder { name: name(), serial: name(), begins: zero, expires: zero },
            other_authorities: Vec::new(),
            server: None,
            server_is_of_others: false,
            client: None,
            revocations,
            min_version: MinVersion::Tls13,
        };
        let told = |renewal, now| {
            let renewal = Option::map(renewal, Duration::from_secs);
            late_list(&status(Some(Revocations { renewal })), Duration::from_secs(now))
        };
        assert_eq!(late_list(&status(None), Duration::MAX), None, "there is no list");
        assert_eq!(told(None, u64::MAX), None, "it does not say");
        assert_eq!(told(Some(100_000), 99_999), None);
        let late = told(Some(100_000), 100_000).expect("late");
        assert!(late.contains("by 1970-01-02T03:46:40Z: it counts on"), "{late}");
    }

    fn holder(name: &str, expires: u64) -> Holder {
        let (begins, expires) = (Duration::ZERO, Duration::from_secs(expires));
        Holder { name: name.to_owned(), serial: name.to_owned(), begins, expires }
    }

    fn of(server: Holder, others: Vec<Holder>) -> TlsStatus {
        TlsStatus {
            authority: holder("first", 1_000_000),
            other_authorities: others,
            server: Some(server),
            server_is_of_others: false,
            client: None,
            revocations: None,
            min_version: MinVersion::Tls13,
        }
    }

    #[test]
    fn a_certificate_that_runs_out_is_logged_once() {
        let mut running_out = RunningOut::default();
        let mut look = |server, now| {
            let status = of(holder(server, 1000), vec![holder("second", 2000)]);
            running_out.look_at(&status, Duration::from_secs(now))
        };
        let logged = |told: Vec<String>, what: &str| {
            assert!(told.len() == 1 && told[0].contains(what), "{told:?}");
        };
        assert!(look("server", 999).is_empty());
        logged(look("server", 1000), "the server's certificate (server) expired");
        assert!(look("server", 1001).is_empty(), "once");
        logged(look("server", 2000), "the authority's certificate (second) expired");
        assert!(
            look("other", 2001).is_empty(),
            "what is loaded too late is logged when it is loaded"
        );
        assert!(look("other", 2002).is_empty());
    }

    #[test]
    fn all_authorities_have_dates_that_count() {
        let status = of(holder("server", 1_000_000), vec![holder("second", 2000)]);
        let names =
            |all: Vec<(&str, Holder)>| all.into_iter().map(|one| one.1.name).collect::<Vec<_>>();
        assert_eq!(names(dated(&status)), ["server", "first", "second"]);
        assert_eq!(names(holders(&status)), ["server", "first"], "the status has one of each kind");
    }

    #[test]
    fn a_server_of_another_authority_than_its_clients_is_named() {
        let ours = of(holder("server", 1_000_000), Vec::new());
        assert_eq!(other_authority(&ours), None);
        let others = TlsStatus { server_is_of_others: true, ..ours };
        let told = other_authority(&others).expect("it is");
        assert!(told.contains("(server) is of no authority in ca-cert.pem"), "{told}");
        assert!(told.contains("public authority"), "{told}");
    }
}
