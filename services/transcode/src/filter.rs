//! Module: callbacks of the node, and requests to it.

use crate::answer::{Answer, Refusal};
use crate::choice::{Choice, Format};
use crate::config::Config;
use crate::frame::{FRAMES_TYPE, MJPEG_TYPE};
use crate::media::{Response, UNTRUE};
use crate::playing::{CannotChange, Playing, Shown};
use crate::random;
use crate::request::{Asked, Place, host_of};
use log::{error, warn};
use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use stream::service::{self, Counter, Once, Service};

proxy_wasm::main! {{
    service::begin::<Shared>();
}}

/// Function of the node that transcodes this stream's response into pictures.
const TRANSCODE: &str = "tamandua_transcode";

/// State that all streams share.
#[derive(Default)]
struct Shared {
    config: Config,
    counters: Option<Counters>,
    /// Warnings that are logged once: the node does not transcode; the node passed an invalid
    /// picture.
    has_warned: [Once; 2],
    /// Streams that play, by their id.
    playing: RefCell<BTreeMap<String, Player>>,
    /// Output buffer of a call, reused so that no picture allocates.
    output: RefCell<Vec<u8>>,
}

/// Stream that plays, for the control requests of its device.
struct Player {
    context: u32,
    address: String,
    playing: Rc<RefCell<Playing>>,
}

struct Counters {
    started: Counter,
    /// Streams refused by the node, or by the service's limit.
    refused: Counter,
    changed: Counter,
    frames: Counter,
    left_out: Counter,
}

impl Counters {
    fn define() -> Option<Self> {
        Some(Self {
            started: Counter::define("started")?,
            refused: Counter::define("refused")?,
            changed: Counter::define("changed")?,
            frames: Counter::define("frames")?,
            left_out: Counter::define("frames_left_out")?,
        })
    }
}

impl Service for Shared {
    fn configure(text: &[u8]) -> Option<Rc<Self>> {
        let config = Config::parse(text).map_err(|reason| error!("{reason}")).ok()?;
        Some(Rc::new(Self { config, counters: Counters::define(), ..Self::default() }))
    }

    fn stream(shared: &Rc<Self>, context: u32) -> Box<dyn HttpContext> {
        Box::new(Stream { shared: Rc::clone(shared), context, state: State::Passes })
    }
}

impl Shared {
    fn count(&self, which: impl Fn(&Counters) -> Counter, by: u32) {
        if let Some(counters) = &self.counters
            && by > 0
        {
            which(counters).add(by);
        }
    }

    /// Calls the node's function for the effective context's stream.
    fn ask(&self, argument: &str) -> Result<(), Refusal> {
        match hostcalls::call_foreign_function(TRANSCODE, Some(argument.as_bytes())) {
            Ok(answer) => Refusal::read(&answer.unwrap_or_default()).map_or(Ok(()), Err),
            Err(status) => {
                if self.has_warned[0].is_first() {
                    warn!("the node does not transcode ({TRANSCODE}: {status:?})");
                }
                Err(Refusal::unavailable())
            }
        }
    }
}

/// State of a request and its response.
enum State {
    /// Not handled by this module.
    Passes,
    /// Request for a possible video.
    Asks { choice: Choice, path: String, has_asked: bool },
    /// Response with pictures.
    Plays { id: String, playing: Rc<RefCell<Playing>> },
}

struct Stream {
    shared: Rc<Shared>,
    context: u32,
    state: State,
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let State::Plays { id, .. } = &self.state {
            self.shared.playing.borrow_mut().remove(id);
        }
    }
}

impl Context for Stream {}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _: usize, _: bool) -> Action {
        let field = |name| self.get_http_request_header(name).unwrap_or_default();
        let (method, host, path) = (field(":method"), field(":authority"), field(":path"));
        match self.shared.config.place(&method, &host, &path) {
            Place::Viewer if matches!(method.as_str(), "GET" | "HEAD") => {
                let page = Answer::viewer();
                let is_head = method == "HEAD";
                self.answer(if is_head { Answer { body: String::new(), ..page } } else { page })
            }
            Place::Viewer => self.answer(Answer::method("GET, HEAD")),
            Place::Control if method == "POST" => self.answer(self.control(&path)),
            Place::Control => self.answer(Answer::method("POST")),
            Place::Nowhere => self.answer(Answer::nowhere(&self.shared.config.prefix)),
            Place::Video => self.ask(&method, path),
            Place::Elsewhere => Action::Continue,
        }
    }

    fn on_http_response_headers(&mut self, _: usize, is_last: bool) -> Action {
        let State::Asks { choice, path, has_asked } = &self.state else { return Action::Continue };
        let fields = self.get_http_response_headers_bytes();
        let response =
            Response::read(fields.iter().map(|(name, value)| (name.as_str(), &value[..])));
        if is_last || !response.is_video(path) {
            return Action::Continue;
        }
        let (choice, has_asked) = (choice.clone(), *has_asked);
        match self.start(choice) {
            Ok(()) => Action::Continue,
            Err(answer) => {
                self.shared.count(|it| it.refused, 1);
                // A request without settings gets the original video, unless capacity is missing.
                let has_no_room = answer.fields.iter().any(|(name, _)| *name == "retry-after");
                if has_asked || has_no_room { self.answer(answer) } else { Action::Continue }
            }
        }
    }

    fn on_http_response_body(&mut self, length: usize, is_last: bool) -> Action {
        if let State::Plays { playing, .. } = &self.state {
            let part = self.get_http_response_body(0, length).unwrap_or_default();
            let mut output = self.shared.output.borrow_mut();
            output.clear();
            let mut playing = playing.borrow_mut();
            let shown = playing.show(&part, &mut output);
            if is_last {
                playing.finish(&mut output);
            }
            if length > 0 || !output.is_empty() {
                self.set_http_response_body(0, length, &output);
            }
            self.report(&shown);
        }
        Action::Continue
    }
}

impl Stream {
    fn answer(&self, answer: Answer) -> Action {
        let fields = answer.fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        self.send_http_response(u32::from(answer.status), fields, Some(answer.body.as_bytes()));
        Action::Pause
    }

    /// Removes the device's settings from a request, and parses them.
    fn ask(&mut self, method: &str, path: String) -> Action {
        let fields = self.get_http_request_headers_bytes();
        let fields = fields.iter().map(|(name, value)| (name.as_str(), &value[..]));
        let read = Asked::read(&path, fields).and_then(|asked| {
            let choice = self.shared.config.default.with(asked.pairs())?;
            Ok((asked, choice))
        });
        let (asked, choice) = match read {
            Ok(read) => read,
            Err(wrong) => return self.answer(Answer::wrong(&wrong)),
        };
        if asked.path != path {
            self.set_http_request_header(":path", Some(&asked.path));
        }
        for name in &asked.fields {
            self.set_http_request_header(name, None);
        }
        let has_asked = asked.chooses();
        if method == "GET" && (has_asked || self.shared.config.serves_all) {
            // A content-coded response cannot be decoded.
            self.set_http_request_header("accept-encoding", Some("identity"));
            self.state = State::Asks { choice, path: asked.path, has_asked };
        }
        Action::Continue
    }

    /// Requests pictures from the node, and writes the response's head.
    fn start(&mut self, choice: Choice) -> Result<(), Answer> {
        let most = self.shared.config.streams;
        if self.shared.playing.borrow().len() >= most {
            return Err(Answer::too_many_streams(most));
        }
        let id = random::id().ok_or_else(|| Answer::refused(&Refusal::unavailable()))?;
        self.shared.ask(&choice.argument()).map_err(|refusal| Answer::refused(&refusal))?;
        for name in UNTRUE {
            self.set_http_response_header(name, None);
        }
        let content_type = match choice.format {
            Format::Frames => FRAMES_TYPE,
            Format::Mjpeg => MJPEG_TYPE,
        };
        let control = format!("{}control", self.shared.config.prefix);
        for (name, value) in [
            ("content-type", content_type),
            ("cache-control", "no-store"),
            ("tamandua-stream", id.as_str()),
            ("tamandua-control", control.as_str()),
        ] {
            self.set_http_response_header(name, Some(value));
        }
        let playing = Rc::new(RefCell::new(Playing::new(choice)));
        let player = Player {
            context: self.context,
            address: self.client().unwrap_or_default(),
            playing: Rc::clone(&playing),
        };
        self.shared.playing.borrow_mut().insert(id.clone(), player);
        self.shared.count(|it| it.started, 1);
        self.state = State::Plays { id, playing };
        Ok(())
    }

    /// Changes a stream that plays.
    fn control(&self, path: &str) -> Answer {
        let fields = self.get_http_request_headers_bytes();
        let fields = fields.iter().map(|(name, value)| (name.as_str(), &value[..]));
        let asked = match Asked::read(path, fields) {
            Ok(asked) => asked,
            Err(wrong) => return Answer::wrong(&wrong),
        };
        let Some(id) = &asked.stream else { return Answer::no_stream_named() };
        let players = self.shared.playing.borrow();
        let Some(player) = players.get(id) else { return Answer::no_stream() };
        if self.client().is_none_or(|address| address != player.address) {
            return Answer::of_another();
        }
        self.change(player, &asked).unwrap_or_else(|answer| answer)
    }

    fn change(&self, player: &Player, asked: &Asked) -> Result<Answer, Answer> {
        let mut playing = player.playing.borrow_mut();
        let choice = playing.choice().with(asked.pairs()).map_err(|wrong| Answer::wrong(&wrong))?;
        let argument = playing.plan(&choice).map_err(|why| match why {
            CannotChange::Format => Answer::format_is_fixed(),
            CannotChange::TooMany => Answer::too_many_changes(),
        })?;
        if let Some(argument) = &argument {
            // A context that has ended has no player.
            hostcalls::set_effective_context(player.context).map_err(|_| Answer::no_stream())?;
            let asked = self.shared.ask(argument);
            hostcalls::set_effective_context(self.context).ok();
            asked.map_err(|refusal| Answer::refused(&refusal))?;
        }
        let number = playing.change(choice, argument.is_some());
        self.shared.count(|it| it.changed, 1);
        Ok(Answer::changed(number, playing.choice()))
    }

    /// Returns the client's address, without its port.
    fn client(&self) -> Option<String> {
        let address = self.get_property(vec!["source", "address"])?;
        Some(host_of(&String::from_utf8_lossy(&address)).to_owned())
    }

    fn report(&self, shown: &Shown) {
        self.shared.count(|it| it.frames, shown.frames);
        self.shared.count(|it| it.left_out, shown.left_out);
        if let Some(malformed) = shown.malformed
            && self.shared.has_warned[1].is_first()
        {
            warn!("the node gave no picture at {}: {}", malformed.at, malformed.why);
        }
    }
}
