//! OpenAPI document, generated from [`ENDPOINTS`] and the types, so that it cannot differ from
//! them.

use crate::endpoints::{Body, Document, ENDPOINTS, Endpoint, METRICS_TEXT, Method, OPEN_METRICS};
use crate::errors::ErrorDocument;
use std::collections::BTreeMap;
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{KnownFormat, SchemaFormat, Type};
use utoipa::openapi::{
    ComponentsBuilder, Content, InfoBuilder, ObjectBuilder, OpenApiBuilder, Paths, Ref, RefOr,
    Required, Response, ResponseBuilder, Schema,
};
use utoipa::{PartialSchema, ToSchema};

/// Returns the document, in OpenAPI 3.1.
#[must_use]
pub fn document() -> serde_json::Value {
    let mut paths = Paths::new();
    for endpoint in ENDPOINTS {
        paths.add_path_operation(endpoint.path, vec![method(endpoint.method)], operation(endpoint));
    }
    let info = InfoBuilder::new()
        .title("Tamandua")
        .description(Some("The API of a node, on its UNIX socket."))
        .version(env!("CARGO_PKG_VERSION"));
    let components = ComponentsBuilder::new().schemas_from_iter(schemas()).build();
    let document =
        OpenApiBuilder::new().info(info.build()).paths(paths).components(Some(components)).build();
    serde_json::to_value(document).expect("its keys are text and its numbers finite")
}

fn operation(endpoint: &Endpoint) -> OperationBuilder {
    let answer = content(endpoint.answer, ResponseBuilder::new().description("Done"), |b, t, c| {
        b.content(t, c)
    });
    let mut operation = OperationBuilder::new()
        .operation_id(Some(operation_id(endpoint)))
        .summary(Some(endpoint.summary))
        .request_body(endpoint.request.map(request_body))
        .response("200", answer.build())
        .response("default", refusal());
    for parameter in parameters(endpoint) {
        operation = operation.parameter(parameter);
    }
    operation
}

/// Returns the operation's name in lower camel case, which generators of clients use.
fn operation_id(endpoint: &Endpoint) -> String {
    let name = format!("{:?}", endpoint.operation);
    let mut letters = name.chars();
    letters.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(letters).collect()
}

fn parameters(endpoint: &Endpoint) -> Vec<Parameter> {
    let in_path = endpoint.path.split('/').filter_map(|segment| {
        let name = segment.strip_prefix('{')?.strip_suffix('}')?;
        let of = if name == "id" { Type::Integer } else { Type::String };
        Some(parameter(name, ParameterIn::Path, Required::True, of, None))
    });
    let in_query = endpoint.flags.iter().map(|flag| {
        let summary = Some(flag.summary);
        parameter(flag.name, ParameterIn::Query, Required::False, Type::Boolean, summary)
    });
    let numbers = endpoint.numbers.iter().map(|number| {
        let summary = Some(number.summary);
        parameter(number.name, ParameterIn::Query, Required::False, Type::Integer, summary)
    });
    let texts = endpoint.texts.iter().map(|text| {
        let summary = Some(text.summary);
        parameter(text.name, ParameterIn::Query, Required::True, Type::String, summary)
    });
    in_path.chain(in_query).chain(numbers).chain(texts).collect()
}

fn parameter(
    name: &str,
    place: ParameterIn,
    required: Required,
    of: Type,
    summary: Option<&str>,
) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .required(required)
        .description(summary)
        .schema(Some(ObjectBuilder::new().schema_type(of)))
        .build()
}

fn request_body(body: Body) -> RequestBody {
    let builder = RequestBodyBuilder::new().required(Some(Required::True));
    content(body, builder, |b, t, c| b.content(t, c)).build()
}

fn refusal() -> Response {
    let content = Content::new(Some(Ref::from_schema_name(ErrorDocument::name())));
    ResponseBuilder::new()
        .description("Refused or failed; the status is that of the error's code")
        .content("application/json", content)
        .build()
}

fn content<B>(body: Body, builder: B, add: impl Fn(B, &'static str, Content) -> B) -> B {
    match body {
        Body::Json(document) => {
            let content = Content::new(Some(Ref::from_schema_name((document.name)())));
            add(builder, "application/json", content)
        }
        Body::AnyJson => {
            let any = ObjectBuilder::new().schema_type(Type::Object);
            add(builder, "application/json", Content::new(Some(any)))
        }
        Body::Wasm => {
            let bytes = ObjectBuilder::new()
                .schema_type(Type::String)
                .format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)));
            add(builder, "application/wasm", Content::new(Some(bytes)))
        }
        Body::Metrics => {
            let text = || Content::new(Some(ObjectBuilder::new().schema_type(Type::String)));
            add(add(builder, METRICS_TEXT, text()), OPEN_METRICS, text())
        }
    }
}

/// Returns the schemas of all types that the endpoints use, each once.
fn schemas() -> BTreeMap<String, RefOr<Schema>> {
    let mut found = vec![(ErrorDocument::name().into_owned(), ErrorDocument::schema())];
    ErrorDocument::schemas(&mut found);
    let bodies = ENDPOINTS.iter().flat_map(|e| e.request.into_iter().chain([e.answer]));
    for body in bodies {
        if let Body::Json(Document { name, schema, parts }) = body {
            found.push((name().into_owned(), schema()));
            parts(&mut found);
        }
    }
    found.into_iter().collect()
}

const fn method(method: Method) -> HttpMethod {
    match method {
        Method::Get => HttpMethod::Get,
        Method::Post => HttpMethod::Post,
        Method::Delete => HttpMethod::Delete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn every_endpoint_is_in_the_document() {
        let document = document();
        for endpoint in ENDPOINTS {
            let method = endpoint.method.as_str().to_lowercase();
            let operation = &document["paths"][endpoint.path][&method];
            assert_eq!(operation["summary"], endpoint.summary, "{} {}", method, endpoint.path);
        }
    }

    #[test]
    fn every_reference_leads_to_a_schema() {
        let document = document();
        let mut references = Vec::new();
        collect(&document, &mut references);
        assert!(references.len() > ENDPOINTS.len());
        for reference in references {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
        }
    }

    fn collect(value: &Value, references: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(reference)) = fields.get("$ref") {
                    references.push(reference.clone());
                }
                fields.values().for_each(|value| collect(value, references));
            }
            Value::Array(items) => items.iter().for_each(|value| collect(value, references)),
            _ => {}
        }
    }

    #[test]
    fn parameters_of_the_path_are_declared() {
        let document = document();
        let parameters = &document["paths"]["/v1/services/{name}"]["delete"]["parameters"];
        let names: Vec<_> =
            parameters.as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["name", "cascade"]);
    }
}
