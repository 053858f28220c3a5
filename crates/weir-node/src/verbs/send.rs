//! A verb as a request to the process that does it.

use axum::http::Method;
use weir_log::catalog::VolumeName;

use super::verb::{Answer, OnProgress, Verb};
use crate::api::client::Client;
use crate::error::NodeError;

impl Client {
    /// Sends a verb, and waits for its report. `on_progress` is called with how much is done and how much there is.
    ///
    /// # Errors
    /// The error of the process, or that it did not answer.
    pub async fn call<V: Verb>(
        &mut self,
        name: Option<&VolumeName>,
        verb: &V,
        on_progress: OnProgress<'_>,
    ) -> Result<V::Report, NodeError> {
        let route = V::ROUTE.ok_or_else(|| self.no_answer(&"it is not asked for this"))?;
        let mut path = route.path.replace("{name}", name.map_or("", VolumeName::as_str));
        let mut body = serde_json::to_vec(verb).map_err(|error| self.no_answer(&error))?;
        if matches!(route.method, Method::GET | Method::DELETE) {
            let asked = serde_json::to_value(verb).map_err(|error| self.no_answer(&error))?;
            let fields = asked.as_object().into_iter().flatten();
            let mut query = url::form_urlencoded::Serializer::new(String::new());
            query.extend_pairs(fields.map(|(key, value)| (key, value.to_string())));
            path = format!("{path}?{}", query.finish());
            body.clear();
        }
        let response = self.send(route.method, &path, body.into()).await?;
        match route.answer {
            Answer::Lines => self.follow(response, on_progress).await,
            Answer::Report(_) => {
                let bytes = self.read(response).await?;
                serde_json::from_slice(&bytes).map_err(|error| self.no_answer(&error))
            }
        }
    }

    /// [`Client::call`] in as many requests as it takes.
    pub(crate) async fn call_parts<V: Verb>(
        &mut self,
        name: Option<VolumeName>,
        verb: V,
        on_progress: OnProgress<'_>,
    ) -> Result<V::Report, NodeError> {
        let (total, mut before) = (verb.size(), 0);
        let mut parts = verb.parts();
        if parts.len() < 2 {
            let only = parts.pop().ok_or_else(|| self.no_answer(&"it is asked for nothing"))?;
            return self.call(name.as_ref(), &only, on_progress).await;
        }
        let mut whole = None;
        for part in parts {
            let on_part = |done, _| on_progress(before + done, total);
            let report = self.call(name.as_ref(), &part, &on_part).await?;
            match &mut whole {
                None => whole = Some(report),
                Some(whole) => V::join(whole, report),
            }
            before += part.size();
        }
        whole.ok_or_else(|| self.no_answer(&"it is asked for nothing"))
    }
}
