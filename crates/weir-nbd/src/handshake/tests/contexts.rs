//! Metadata contexts: what is listed, what is agreed on, and what a client makes of it.

use super::*;
use crate::limits::{CONTEXTS_MAX, META_QUERIES_MAX, STRING_BYTES_MAX};

#[test]
fn metadata_needs_chunks_first() {
    let mut server = greeted(FIXED);
    let set = OptionRequest::SetMetaContext { name: "disk", queries: vec!["base:allocation"] };
    assert_eq!(codes(&mut server, &option(&set)), [OptionReplyCode::ERR_INVALID]);
}

/// Names and numbers of the contexts that a metadata option brings.
fn contexts(server: &mut ServerHandshake, request: &OptionRequest<'_>) -> Vec<(u32, String)> {
    let (progress, out) = send(server, &option(request));
    assert_eq!(progress.unwrap().step, HandshakeStep::Again);
    let mut all = replies(&out);
    assert_eq!(all.pop().map(|(_, reply)| reply), Some(OptionReply::Ack));
    let context = |(_, reply)| match reply {
        OptionReply::MetaContext { id, name } => (id, name.to_owned()),
        other => panic!("{other:?} among contexts"),
    };
    all.into_iter().map(context).collect()
}

#[test]
fn queries_list_and_choose_as_the_namespace_says() {
    let mut server = greeted(FIXED);
    codes(&mut server, &option(&OptionRequest::StructuredReply));
    let names = ["base:allocation", "qemu:dirty-bitmap:monday", "qemu:dirty-bitmap:tuesday"];
    // Queries, and which of the names they list and choose.
    let cases: &[(&[&str], &[usize], &[usize])] = &[
        (&[], &[0, 1, 2], &[]),
        (&["base:"], &[0], &[]),
        (&["base:allocation"], &[0], &[0]),
        (&["base:allocation", "base:allocation"], &[0], &[0]),
        (&["base:other"], &[], &[]),
        (&["base:allocationx"], &[], &[]),
        (&["qemu:"], &[1, 2], &[]),
        (&["qemu:dirty-bitmap:"], &[1, 2], &[]),
        (&["qemu:dirty-bitmap"], &[], &[]),
        (&["qemu:allocation-depth"], &[], &[]),
        (&["qemu:dirty-bitmap:tuesday"], &[2], &[2]),
        (&["qemu:dirty-bitmap:tues"], &[], &[]),
        (&["qemu:dirty-bitmap:tuesday", "base:allocation"], &[0, 2], &[0, 2]),
        (&["qemu:", "base:allocation"], &[0, 1, 2], &[0]),
        (&["qemu:dirty-bitmap:x", "base:allocation"], &[0], &[0]),
        (&["x-unknown:"], &[], &[]),
    ];
    for name in ["frozen", "disk"] {
        // The second one has nothing to be compared with.
        let expected = |indices: &[usize], listing| -> Vec<(u32, String)> {
            let here = indices.iter().filter(|index| **index == 0 || name == "frozen");
            let id = |index: usize| if listing { 0 } else { u32::try_from(index).unwrap() + 1 };
            here.map(|index| (id(*index), names[*index].to_owned())).collect()
        };
        for (queries, lists, chooses) in cases {
            let queries = queries.to_vec();
            let list = OptionRequest::ListMetaContext { name, queries: queries.clone() };
            assert_eq!(contexts(&mut server, &list), expected(lists, true), "{queries:?}");
            let set = OptionRequest::SetMetaContext { name, queries: queries.clone() };
            assert_eq!(contexts(&mut server, &set), expected(chooses, false), "{queries:?}");
        }
    }
}

#[test]
fn too_many_queries_are_too_big() {
    let mut server = greeted(FIXED);
    codes(&mut server, &option(&OptionRequest::StructuredReply));
    let queries = vec!["base:"; usize::try_from(META_QUERIES_MAX).unwrap() + 1];
    let list = OptionRequest::ListMetaContext { name: "disk", queries };
    assert_eq!(codes(&mut server, &option(&list)), [OptionReplyCode::ERR_TOO_BIG]);
}

/// Whether block status is agreed on after these metadata options and `GO` for `export`.
fn allocation_after(sets: &[Vec<u8>], export: &str) -> bool {
    let mut server = greeted(FIXED);
    codes(&mut server, &option(&OptionRequest::StructuredReply));
    for set in sets {
        codes(&mut server, set);
    }
    let go = option(&OptionRequest::Go { name: export, facts: vec![] });
    match send(&mut server, &go).0.unwrap().step {
        HandshakeStep::Transmit { session, .. } => !session.contexts.is_empty(),
        step => panic!("{step:?} after GO"),
    }
}

/// An export with more earlier states than a connection may choose, the last of them with too long a name.
struct Old;

impl Catalog for Old {
    type Handle = ();

    fn find(&self, name: &str) -> Result<(ExportInfo, ()), NotOffered> {
        let mut earlier: Vec<_> = (0..2 * CONTEXTS_MAX).map(|n| format!("s{n}")).collect();
        earlier.push("x".repeat(STRING_BYTES_MAX - 10));
        let (name, description) = (name.to_owned(), String::new());
        let earlier = earlier.into();
        Ok((
            ExportInfo {
                name,
                description,
                size: 1,
                read_only: true,
                instance: None,
                volume: None,
                earlier,
            },
            (),
        ))
    }

    fn list(&self) -> Vec<String> {
        Vec::new()
    }
}

#[test]
fn contexts_beyond_the_limit_are_listed_and_not_agreed_on() {
    let mut server = greeted(FIXED);
    let mut ask = |request: &OptionRequest<'_>| {
        let mut out = Vec::new();
        let progress = server.advance(&option(request), &Old, &mut out).expect("answered");
        (progress.step, out)
    };
    ask(&OptionRequest::ExtendedHeaders);
    let (_, out) = ask(&OptionRequest::ListMetaContext { name: "d", queries: vec![] });
    assert_eq!(replies(&out).len(), 1 + 2 * CONTEXTS_MAX + 1, "all but the longest, and ACK");
    let names: Vec<_> = (0..2 * CONTEXTS_MAX).map(|n| format!("qemu:dirty-bitmap:s{n}")).collect();
    let queries = names.iter().map(String::as_str).collect();
    let (_, out) = ask(&OptionRequest::SetMetaContext { name: "d", queries });
    let answer = replies(&out);
    assert_eq!(answer.len(), CONTEXTS_MAX + 1);
    assert_eq!(answer[CONTEXTS_MAX].1, OptionReply::Ack, "it is no error");
    let (step, _) = ask(&OptionRequest::Go { name: "d", facts: vec![] });
    let HandshakeStep::Transmit { session, .. } = step else { panic!("{step:?}") };
    let told = answer.iter().filter_map(|(_, reply)| match reply {
        OptionReply::MetaContext { id, name } => Some((*id, *name)),
        _ => None,
    });
    assert!(session.contexts.iter().map(|c| (c.id, c.name.as_str())).eq(told));
    let ids: std::collections::BTreeSet<_> = session.contexts.iter().map(|c| c.id).collect();
    assert_eq!(ids.len(), CONTEXTS_MAX, "each has a number of its own");
}

#[test]
fn the_last_choice_for_the_same_name_counts() {
    let queries = vec!["base:allocation"];
    let disk = option(&OptionRequest::SetMetaContext { name: "disk", queries: queries.clone() });
    let frozen = option(&OptionRequest::SetMetaContext { name: "frozen", queries });
    let none = option(&OptionRequest::SetMetaContext { name: "disk", queries: vec![] });
    let malformed = raw_option(10, &hex("00000009"));
    let long = raw_option(10, &[]);
    assert!(allocation_after(std::slice::from_ref(&disk), "disk"));
    assert!(!allocation_after(std::slice::from_ref(&disk), "frozen"));
    assert!(!allocation_after(&[disk.clone(), frozen.clone()], "disk"));
    assert!(allocation_after(&[disk.clone(), frozen], "frozen"));
    assert!(!allocation_after(&[disk.clone(), none], "disk"));
    assert!(!allocation_after(&[disk.clone(), malformed], "disk"), "a failure clears it too");
    assert!(!allocation_after(&[disk, long], "disk"));
}

#[test]
fn client_and_server_agree_on_several_contexts() {
    for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
        let wanted = ["qemu:dirty-bitmap:tuesday", "qemu:dirty-bitmap:never", ALLOCATION_CONTEXT];
        let contexts = wanted.map(str::to_owned).to_vec();
        let wish = ClientWish { contexts, ..wish("frozen", style, true) };
        let (agreement, session) = talk(wish, 7).unwrap();
        assert_eq!(agreement.session, session);
        let meanings = session.contexts.iter().map(|c| (c.id, Context::of(&c.name)));
        let expected = [(1, Context::Allocation), (3, Context::ChangedSince("tuesday"))];
        assert!(meanings.eq(expected.map(|(id, context)| (id, Some(context)))));
    }
}

/// What a client makes of these answers to its wish for two contexts.
fn agreed(answers: &[(u32, &str)]) -> Result<Vec<ChosenContext>, ProtocolError> {
    let contexts = ["base:allocation", "qemu:dirty-bitmap:a"].map(str::to_owned).to_vec();
    let wish = ClientWish { contexts, ..wish("x", ReplyStyle::Structured, true) };
    let mut client = ClientHandshake::new(wish);
    let mut input = hex("4e42444d41474943 49484156454f5054 0003");
    encode_option_reply(OptionCode::STRUCTURED_REPLY, &OptionReply::Ack, &mut input);
    for (id, name) in answers {
        let reply = OptionReply::MetaContext { id: *id, name };
        encode_option_reply(OptionCode::SET_META_CONTEXT, &reply, &mut input);
    }
    encode_option_reply(OptionCode::SET_META_CONTEXT, &OptionReply::Ack, &mut input);
    let export = Fact::Export { size: 1, flags: TransmissionFlags::HAS_FLAGS };
    encode_option_reply(OptionCode::GO, &OptionReply::Info(export), &mut input);
    encode_option_reply(OptionCode::GO, &OptionReply::Ack, &mut input);
    loop {
        let progress = client.advance(&input, &mut Vec::new())?;
        input.drain(..progress.consumed);
        match progress.step {
            ClientStep::Transmit(agreement) => return Ok(agreement.session.contexts),
            ClientStep::Again | ClientStep::StartTls => {}
            ClientStep::NeedMore(_) => panic!("all was said"),
        }
    }
}

#[test]
fn a_client_takes_the_contexts_that_it_asked_for_each_once() {
    let chosen = |id, name: &str| ChosenContext { id, name: name.to_owned() };
    let (base, dirty) = ("base:allocation", "qemu:dirty-bitmap:a");
    let both = agreed(&[(7, dirty), (0, base), (7, "x:y"), (9, dirty)]).unwrap();
    assert_eq!(both, [chosen(7, dirty), chosen(0, base)]);
    assert_eq!(agreed(&[]).unwrap(), []);
    let same = agreed(&[(7, dirty), (7, base)]).unwrap_err();
    assert!(matches!(same, ProtocolError::Unexpected { .. }), "{same}");
}
