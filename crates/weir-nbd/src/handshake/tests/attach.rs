//! Attachments: golden bytes, for which export and opening they count, and clients that may only read.

use super::*;

#[test]
fn attach_golden() {
    let session = *b"0123456789abcdef";
    let attachment = Attachment { session, generation: 258, exclusive: false, known: None };
    let attach = OptionRequest::Attach { name: "disk", attachment };
    let bytes = hex("49484156454f5054 57454952 00000034 0002 30313233343536373839616263646566
         0000000000000102 0000 00000000000000000000000000000000 00000004 6469736b");
    assert_eq!(option(&attach), bytes);
    assert_eq!(decode_option(OptionCode::WEIR_ATTACH, &bytes[16..]).unwrap(), attach);
    let mut server = greeted(BOTH);
    let (_, out) = send(&mut server, &bytes);
    let head = "0003e889045565a9 57454952";
    let expected = format!(
        "{head} 57454952 00000034 0002 746865206f70656e696e67206f662031
         0000 00000000000000000000000000000000 00000000000000000000000000000000 {head} 00000001 00000000"
    );
    assert_eq!(out, hex(&expected));
    let go = option(&OptionRequest::Go { name: "disk", facts: vec![] });
    let step = send(&mut server, &go).0.unwrap().step;
    let HandshakeStep::Transmit { attachment: found, .. } = step else { panic!("{step:?}") };
    assert_eq!(found, Some(attachment));
}

/// Lets clients only read.
struct Held;

impl Catalog for Held {
    type Handle = u32;

    fn find(&self, name: &str) -> Result<(ExportInfo, u32), NotOffered> {
        Shelf.find(name)
    }

    fn list(&self) -> Vec<String> {
        Shelf.list()
    }

    fn admit(
        &self,
        _: (&ExportInfo, &u32),
        _: Option<&Attachment>,
    ) -> Result<Admission, &'static str> {
        Ok(Admission::ReadOnly)
    }
}

#[test]
fn whoever_may_only_read_is_told_so_however_it_asks() {
    let by_name = option(&OptionRequest::ExportName("disk"));
    let go = option(&OptionRequest::Go { name: "disk", facts: vec![] });
    for request in [by_name, go] {
        let mut server = greeted(BOTH);
        let mut out = Vec::new();
        let step = server.advance(&request, &Held, &mut out).unwrap().step;
        let HandshakeStep::Transmit { session, info, .. } = step else { panic!("{step:?}") };
        assert!(session.flags.contains(TransmissionFlags::READ_ONLY) && info.read_only);
        assert!(!session.flags.contains(TransmissionFlags::SEND_TRIM));
    }
}

#[test]
fn what_was_attached_to_another_opening_begins_with_none() {
    /// The opening is another one each time that it is looked up.
    struct Reopened(std::cell::Cell<u8>);

    impl Catalog for Reopened {
        type Handle = u32;

        fn find(&self, name: &str) -> Result<(ExportInfo, u32), NotOffered> {
            self.0.set(self.0.get() + 1);
            let (info, handle) = Shelf.find(name)?;
            Ok((ExportInfo { instance: Some([self.0.get(); 16]), ..info }, handle))
        }

        fn list(&self) -> Vec<String> {
            Vec::new()
        }
    }

    let attachment = Attachment { session: [1; 16], generation: 1, exclusive: false, known: None };
    let catalog = Reopened(std::cell::Cell::new(0));
    let mut server = greeted(BOTH);
    let mut ask = |request: OptionRequest<'_>| {
        let mut out = Vec::new();
        let progress = server.advance(&option(&request), &catalog, &mut out);
        progress.map(|progress| (progress.step, out))
    };
    ask(OptionRequest::Attach { name: "disk", attachment }).unwrap();
    let (step, out) = ask(OptionRequest::Go { name: "disk", facts: vec![] }).unwrap();
    assert_eq!(
        (step, replies(&out)[0].1.code()),
        (HandshakeStep::Again, OptionReplyCode::ERR_POLICY)
    );
    ask(OptionRequest::ExportName("disk")).unwrap_err();
}

#[test]
fn an_attachment_counts_for_the_export_that_it_names_by_the_last_attempt() {
    let attachment = Attachment { session: [1; 16], generation: 1, exclusive: false, known: None };
    let attach = |name| option(&OptionRequest::Attach { name, attachment });
    let mut other_version = attach("disk");
    other_version[17] = 1;
    let mut cut_off = attach("disk");
    cut_off.pop();
    cut_off[15] -= 1;
    let cases: [(&[Vec<u8>], bool); 7] = [
        (&[attach("disk")], true),
        (&[attach("")], false),
        (&[attach("frozen")], false),
        (&[attach("disk"), attach("nosuch")], false),
        (&[attach("disk"), other_version.clone()], false),
        (&[attach("disk"), cut_off], false),
        (&[other_version, attach("disk")], true),
    ];
    for (nth, (options, is_attached)) in cases.into_iter().enumerate() {
        let mut server = greeted(BOTH);
        for bytes in options {
            send(&mut server, bytes).0.expect("the stream stays in step");
        }
        let go = option(&OptionRequest::Go { name: "disk", facts: vec![] });
        let HandshakeStep::Transmit { attachment, .. } = send(&mut server, &go).0.unwrap().step
        else {
            panic!("transmission begins");
        };
        assert_eq!(attachment.is_some(), is_attached, "case {nth}");
    }
}

#[test]
fn a_client_attaches_where_the_server_knows_how_and_goes_on_without_it_elsewhere() {
    let attachment =
        Some(Attachment { session: [3; 16], generation: 9, exclusive: false, known: None });
    for style in [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended] {
        for (allocation, chunk) in [(true, 1), (false, 5), (true, usize::MAX)] {
            for (export, instance) in [("disk", Some(*b"the opening of 1")), ("frozen", None)] {
                let wish = ClientWish { attachment, ..wish(export, style, allocation) };
                let (agreement, session) = talk(wish, chunk).expect("agreed");
                let attached =
                    instance.map(|instance| Attached { instance, volume: None, exclusive: None });
                assert_eq!((agreement.attached, agreement.session), (attached, session));
            }
        }
    }
    let wish = ClientWish { attachment, ..wish("nosuch", ReplyStyle::Extended, true) };
    let error = talk(wish, usize::MAX).expect_err("there is none");
    assert!(matches!(error, ProtocolError::Refused { .. }), "{error}");
}
