//! A service that speaks as much S3 as a store needs: one bucket in memory, over plain HTTP on loopback. Answers can be
//! prepared for the next requests, so that every word of a real store can be tried.
#![allow(dead_code, reason = "each test uses its part")]

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use weir_store::{S3Options, Secret, StoreOptions};

/// Keys in one page of a listing, fewer than S3's thousand so that small listings have pages.
const PAGE: usize = 7;

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Decoded, without the query.
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Close the connection after so many bytes of the body.
    pub(crate) cut_after: Option<usize>,
    /// Do what was asked, and then answer this.
    pub(crate) after_doing: bool,
}

impl Answer {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, body: body.into(), ..Self::default() }
    }

    /// An error of S3.
    pub(crate) fn error(status: u16, code: &str) -> Self {
        let body = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>as {code} says\
             </Message></Error>"
        );
        let mut answer = Self::new(status, body);
        answer.headers.push(("Date".to_owned(), "Sat, 21 Nov 2026 03:00:00 GMT".to_owned()));
        answer
    }
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    prepared: VecDeque<Answer>,
    requests: Vec<Request>,
    no_conditions: bool,
    heeds_checksums: bool,
    refuses_unsigned: bool,
}

/// The service. Ends with the runtime of the test.
#[derive(Clone)]
pub(crate) struct FakeS3 {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl FakeS3 {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let fake = Self { address, state: Arc::default() };
        let serving = fake.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = serving.clone();
                tokio::spawn(async move { serving.serve(stream).await });
            }
        });
        fake
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn options(&self) -> StoreOptions {
        let s3 = S3Options {
            endpoint: Some(self.endpoint()),
            access_key_id: Some("key".to_owned()),
            secret_access_key: Some(Secret::new("hunter2")),
            ..S3Options::default()
        };
        StoreOptions { s3, ..StoreOptions::default() }
    }

    /// The next requests are answered like this.
    pub(crate) fn prepare(&self, answers: impl IntoIterator<Item = Answer>) {
        self.with(|state| state.prepared.extend(answers));
    }

    /// PUTs with a condition are refused as not implemented.
    pub(crate) fn know_no_conditions(&self) {
        self.with(|state| state.no_conditions = true);
    }

    /// Bodies are compared with their checksums.
    pub(crate) fn heed_checksums(&self) {
        self.with(|state| state.heeds_checksums = true);
    }

    /// Bodies without a signature of their own are refused.
    pub(crate) fn refuse_unsigned(&self) {
        self.with(|state| state.refuses_unsigned = true);
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.with(|state| state.requests.clone())
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.with(|state| state.objects.keys().cloned().collect())
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut State) -> T) -> T {
        use_it(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn serve(&self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        while let Ok(Some(request)) = receive(&mut stream).await {
            let head_only = request.method == "HEAD";
            let answer = self.with(|state| state.answer(request));
            if send(&mut stream, &answer, head_only).await.is_err() || answer.cut_after.is_some() {
                return;
            }
        }
    }
}

impl State {
    fn answer(&mut self, request: Request) -> Answer {
        self.requests.push(request.clone());
        match self.prepared.pop_front() {
            Some(answer) if answer.after_doing => {
                self.done(&request);
                answer
            }
            Some(answer) if answer.cut_after.is_some() && answer.status == 0 => {
                Answer { cut_after: answer.cut_after, ..self.done(&request) }
            }
            Some(answer) => answer,
            None => self.done(&request),
        }
    }

    fn done(&mut self, request: &Request) -> Answer {
        let path = request.path.trim_start_matches('/');
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        if bucket != "bucket" {
            return Answer::error(404, "NoSuchBucket");
        }
        match (request.method.as_str(), key) {
            ("GET", "") => self.list(&request.query),
            ("PUT", key) => {
                let conditional = request.headers.contains_key("if-none-match");
                if conditional && self.no_conditions {
                    return Answer::error(501, "NotImplemented");
                }
                if conditional && self.objects.contains_key(key) {
                    return Answer::error(412, "PreconditionFailed");
                }
                let is_unsigned = request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD";
                if self.refuses_unsigned && is_unsigned {
                    return Answer::error(403, "AccessDenied");
                }
                let checksum = request.headers.get("x-amz-checksum-crc64nvme");
                if self.heeds_checksums && checksum.is_some_and(|it| *it != crc64(&request.body)) {
                    return Answer::error(400, "BadDigest");
                }
                self.objects.insert(key.to_owned(), request.body.clone());
                let mut answer = Answer::new(200, "");
                answer.headers.push(("ETag".to_owned(), "\"e\"".to_owned()));
                answer
            }
            ("GET" | "HEAD", key) => self.get(key, request.headers.get("range")),
            ("DELETE", key) => {
                self.objects.remove(key);
                Answer::new(204, "")
            }
            _ => Answer::error(405, "MethodNotAllowed"),
        }
    }

    fn get(&self, key: &str, range: Option<&String>) -> Answer {
        let Some(body) = self.objects.get(key) else { return Answer::error(404, "NoSuchKey") };
        let common = [
            ("ETag".to_owned(), "\"e\"".to_owned()),
            ("Last-Modified".to_owned(), "Sat, 21 Nov 2026 03:00:00 GMT".to_owned()),
        ];
        let Some(range) = range else {
            return Answer { headers: common.to_vec(), ..Answer::new(200, body.clone()) };
        };
        let range = range.strip_prefix("bytes=").expect("a range of bytes");
        let (start, end) = range.split_once('-').expect("two ends");
        let start: usize = start.parse().expect("a number");
        let end: usize = end.parse::<usize>().expect("a number").min(body.len().saturating_sub(1));
        if start >= body.len() {
            return Answer::error(416, "InvalidRange");
        }
        let mut headers = common.to_vec();
        headers.push(("Content-Range".to_owned(), format!("bytes {start}-{end}/{}", body.len())));
        Answer { headers, ..Answer::new(206, &body[start..=end]) }
    }

    fn list(&self, query: &BTreeMap<String, String>) -> Answer {
        let text = |name: &str| query.get(name).map_or("", String::as_str);
        let after = text("start-after").max(text("continuation-token"));
        let prefix = text("prefix");
        let mut matching =
            self.objects.iter().filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after);
        let page: Vec<_> = matching.by_ref().take(PAGE).collect();
        let mut body = "<?xml version=\"1.0\"?>\n<ListBucketResult>".to_owned();
        for (key, object) in &page {
            let _ = write!(
                body,
                "<Contents><Key>{key}</Key><LastModified>2026-11-21T03:00:00.000Z</LastModified>\
                 <ETag>\"e\"</ETag><Size>{}</Size></Contents>",
                object.len()
            );
        }
        if matching.next().is_some() {
            let last = page.last().expect("a full page").0;
            let _ = write!(body, "<NextContinuationToken>{last}</NextContinuationToken>");
        }
        body.push_str("</ListBucketResult>");
        Answer::new(200, body)
    }
}

/// CRC-64/NVME in base64, as S3 writes it.
pub(crate) fn crc64(body: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    digest.update(body);
    let bits = u128::from(digest.finalize()) << 2;
    let digit = |place: u32| char::from(DIGITS[(bits >> (60 - 6 * place)) as usize & 63]);
    (0..11).map(digit).chain(['=']).collect()
}

async fn receive(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let query = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut request = Request {
        method: method.to_owned(),
        path: decoded(path),
        query: query.map(|(name, value)| (decoded(name), decoded(value))).collect(),
        headers: BTreeMap::new(),
        body: Vec::new(),
    };
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        request.headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = request.headers.get("content-length").and_then(|length| length.parse().ok());
    request.body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut request.body).await?;
    Ok(Some(request))
}

async fn send(
    stream: &mut BufReader<TcpStream>,
    answer: &Answer,
    head_only: bool,
) -> io::Result<()> {
    let mut head =
        format!("HTTP/1.1 {} X\r\nContent-Length: {}\r\n", answer.status, answer.body.len());
    for (name, value) in &answer.headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await?;
    if !head_only {
        let bytes = answer.cut_after.unwrap_or(usize::MAX).min(answer.body.len());
        stream.write_all(&answer.body[..bytes]).await?;
    }
    stream.flush().await
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next().unwrap_or(b'0'), rest.next().unwrap_or(b'0')];
                let digits = std::str::from_utf8(&digits).expect("digits");
                bytes.push(u8::from_str_radix(digits, 16).expect("hex digits"));
            }
            b'+' => bytes.push(b' '),
            _ => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).expect("text")
}
