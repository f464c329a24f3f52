//! What the files of `deploy` may hold: those parts of the formats of Kubernetes, JobSet and Compose that they use, and
//! no more. A field that is not here is misspelt, or has to be added from the format's own reference.

use std::collections::BTreeMap;

use serde_json::Value;

/// `Name field: type, field!: type`; `!` where the format requires it. A type is another name, `[type]`, `=word|word`,
/// or one of [`scalar`].
const SHAPES: &str = "
    Metadata        name!: text, labels: texts
    Claim           apiVersion!: =v1, kind!: =PersistentVolumeClaim, metadata!: Metadata, spec!: ClaimSpec
    ClaimSpec       accessModes!: [=ReadWriteOnce], resources!: Resources
    Resources       requests: amounts, limits: amounts
    JobSet          apiVersion!: =jobset.x-k8s.io/v1alpha2, kind!: =JobSet, metadata!: Metadata, spec!: JobSetSpec
    JobSetSpec      network: Network, successPolicy: Success, failurePolicy: Failure, replicatedJobs!: [ReplicatedJob]
    Network         enableDNSHostnames: switch, subdomain: text, publishNotReadyAddresses: switch
    Success         operator!: =All|Any, targetReplicatedJobs: [text]
    Failure         maxRestarts: count
    ReplicatedJob   name!: text, replicas: count, template!: JobTemplate
    JobTemplate     spec!: JobSpec
    JobSpec         completions: count, parallelism: count, backoffLimit: count, podFailurePolicy: PodFailure, \
    template!: PodTemplate
    PodFailure      rules!: [PodFailureRule]
    PodFailureRule  action!: =Ignore|Count|FailJob|FailIndex, onPodConditions: [PodCondition]
    PodCondition    type!: text, status!: =True|False|Unknown
    Deployment      apiVersion!: =apps/v1, kind!: =Deployment, metadata!: Metadata, spec!: DeploymentSpec
    DeploymentSpec  replicas: count, selector!: Selector, template!: PodTemplate
    Selector        matchLabels!: texts
    PodTemplate     metadata: Labels, spec!: PodSpec
    Labels          labels: texts
    PodSpec         restartPolicy: =Never|OnFailure|Always, terminationGracePeriodSeconds: count, \
    automountServiceAccountToken: switch, securityContext: PodSecurity, containers!: [Container], volumes: [Volume]
    PodSecurity     runAsNonRoot: switch, runAsUser: count, runAsGroup: count, fsGroup: count, seccompProfile: Seccomp
    Seccomp         type!: =RuntimeDefault|Unconfined|Localhost
    Container       name!: text, image!: text, args: [text], workingDir: text, envFrom: [EnvFrom], ports: [Port], \
    readinessProbe: Probe, startupProbe: Probe, resources: Resources, securityContext: Security, volumeMounts: [Mount]
    EnvFrom         secretRef!: Ref
    Ref             name!: text
    Port            name: text, containerPort!: count
    Probe           tcpSocket: Socket, exec: Exec, periodSeconds: count, timeoutSeconds: count, failureThreshold: count
    Socket          port!: text
    Exec            command!: [text]
    Security        allowPrivilegeEscalation: switch, capabilities: Capabilities
    Capabilities    drop: [=ALL]
    Mount           name!: text, mountPath!: text, readOnly: switch
    Volume          name!: text, persistentVolumeClaim: ClaimRef, configMap: Ref, secret: Secret, emptyDir: EmptyDir
    ClaimRef        claimName!: text
    Secret          secretName!: text, defaultMode: count
    EmptyDir        medium: =Memory, sizeLimit: amount
    Compose         name: text, services!: Services
    Services        train!: Service, worker!: Service
    Service         image: text, build: Build, user: text, command!: [text], working_dir: text, environment: texts, \
    volumes: [text], shm_size: text, stop_grace_period: text, restart: text, depends_on: [text], deploy: Deploy
    Build           context!: text, dockerfile: text
    Deploy          replicas: count, resources: Limits
    Limits          limits: Limit
    Limit           cpus: text, memory: text
";

/// Everything in a document that is not as the shape of this name says, with its place.
pub fn differences(document: &Value, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    check(document, name, name, &mut found);
    found
}

fn shape(name: &str) -> Option<BTreeMap<&'static str, (bool, &'static str)>> {
    let line = SHAPES.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(' '))?;
    let fields = line.split(',').map(|field| {
        let (key, of) = field.trim().split_once(": ").expect("a field has a type");
        (key.trim_end_matches('!'), (key.ends_with('!'), of))
    });
    Some(fields.collect())
}

fn check(value: &Value, of: &str, place: &str, found: &mut Vec<String>) {
    if let Some(inner) = of.strip_prefix('[').and_then(|of| of.strip_suffix(']')) {
        match value.as_array() {
            Some(items) => {
                items.iter().enumerate().for_each(|(at, item)| check(item, inner, &format!("{place}[{at}]"), found))
            }
            None => found.push(format!("{place} is no list")),
        }
        return;
    }
    let Some(fields) = shape(of) else {
        if !scalar(value, of) {
            found.push(format!("{place} is {value} and not {of}"));
        }
        return;
    };
    let Some(object) = value.as_object() else {
        found.push(format!("{place} is no {of}"));
        return;
    };
    let missing = fields.iter().filter(|(key, (required, _))| *required && !object.contains_key(**key));
    found.extend(missing.map(|(key, _)| format!("{place} has no {key}")));
    for (key, value) in object {
        match fields.get(key.as_str()) {
            Some((_, of)) => check(value, of, &format!("{place}.{key}"), found),
            None => found.push(format!("{place} has {key}, which {of} has not")),
        }
    }
}

fn scalar(value: &Value, of: &str) -> bool {
    let amount = |value: &Value| {
        value.is_u64() || value.as_str().is_some_and(|text| text.starts_with(|c: char| c.is_ascii_digit()))
    };
    let all = |is: &dyn Fn(&Value) -> bool| value.as_object().is_some_and(|object| object.values().all(is));
    match of {
        "text" => value.is_string(),
        "count" => value.is_u64(),
        "switch" => value.is_boolean(),
        "amount" => amount(value),
        "texts" => all(&Value::is_string),
        "amounts" => all(&amount),
        words => {
            let words = words.strip_prefix('=').unwrap_or_else(|| panic!("there is no type {words}"));
            value.as_str().is_some_and(|text| words.split('|').any(|word| word == text))
        }
    }
}
