//! What a server asks of its client, which has nothing to offer but a sign of life.

use serde_json::{Value, json};

/// The code of an error about a method that is not known.
const NO_METHOD: i64 = -32601;

/// Whether a message is a request or a notification of the server, and no answer. Its id is one of the server's own, so
/// it may be equal to that of a request of the client.
pub fn is_asked(message: &Value) -> bool {
    message["method"].is_string()
}

/// The answer to a request of the server; none to a notification, which asks for none.
pub fn answer(message: &Value) -> Option<Value> {
    match (message["method"].as_str()?, &message["id"]) {
        (_, Value::Null) => None,
        ("ping", id) => Some(json!({"jsonrpc": "2.0", "id": id, "result": {}})),
        (_, id) => {
            let error = json!({"code": NO_METHOD, "message": "Method not found"});
            Some(json!({"jsonrpc": "2.0", "id": id, "error": error}))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_gets_a_sign_of_life_and_nothing_else() {
        let of = |message: Value| (is_asked(&message), answer(&message));
        let life = json!({"jsonrpc": "2.0", "id": "p", "result": {}});
        assert_eq!(of(json!({"jsonrpc": "2.0", "id": "p", "method": "ping"})), (true, Some(life)));
        let (asked, roots) = of(json!({"jsonrpc": "2.0", "id": 0, "method": "roots/list"}));
        let roots = roots.unwrap();
        assert!(asked && roots["id"] == 0 && roots["error"]["code"] == -32601, "{roots}");
        assert_eq!(of(json!({"jsonrpc": "2.0", "method": "notifications/message"})), (true, None));
        assert_eq!(of(json!({"jsonrpc": "2.0", "id": 1, "result": {}})), (false, None));
        assert_eq!(of(json!([])), (false, None));
    }
}
