"""Trainers → agent → gateway → bridges: the pipelines of ``collector/otelcol`` on one machine, on free ports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from support.collector.otelcol_programs import (
    Service,
    bridge,
    collector,
    running,
    services,
)
from support.free_ports import free_pair, free_port


@dataclass
class Chain:
    """The running parts.

    Attributes:
        endpoint: Where trainers send, gRPC.
        http_endpoint: The same over HTTP.
        scrape_port: Where Prometheus reads the gateway.
        archive: The gateway's file archive.
    """

    agent: Service
    gateway: Service
    bridges: list[Service]
    endpoint: str
    http_endpoint: str
    gateway_endpoint: str
    scrape_port: int
    archive: Path
    certificate: Path

    def trainer(self) -> dict[str, str]:
        """What a trainer on the agent's node is given."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        }


@contextmanager
def chain(
    folder: Path,
    exporters: str,
    *,
    bridges: int = 1,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Chain]:
    """Start it all; run folders of bridge n lie in ``folder/bridge-n``."""
    ports = [free_pair() for _ in range(bridges)]
    grpc, http, metrics = free_port(), free_port(), free_port()
    agent_grpc, agent_http = free_port(), free_port()
    authority = trustme.CA()
    certificate = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(certificate))
    ours = authority.issue_cert("localhost", "127.0.0.1")
    ours.cert_chain_pems[0].write_to_path(str(folder / "gateway.crt"))
    ours.private_key_pem.write_to_path(str(folder / "gateway.key"))
    gateway = collector(
        folder,
        "gateway",
        grpc,
        GATEWAY_GRPC=f"127.0.0.1:{grpc}",
        GATEWAY_HTTP=f"127.0.0.1:{http}",
        GATEWAY_CERT=folder / "gateway.crt",
        GATEWAY_KEY=folder / "gateway.key",
        GATEWAY_QUEUE=folder / "gateway-queue",
        GATEWAY_ARCHIVE=folder / "archive",
        GATEWAY_PROMETHEUS=f"127.0.0.1:{metrics}",
        GATEWAY_HEALTH=f"127.0.0.1:{free_port()}",
        BRIDGES=json.dumps([f"127.0.0.1:{port}" for port in ports]),
        BRIDGE_INSECURE="true",
    )
    agent = collector(
        folder,
        "agent",
        agent_grpc,
        AGENT_GRPC=f"127.0.0.1:{agent_grpc}",
        AGENT_HTTP=f"127.0.0.1:{agent_http}",
        AGENT_QUEUE=folder / "agent-queue",
        AGENT_HEALTH=f"127.0.0.1:{free_port()}",
        GATEWAY=f"localhost:{grpc}",
        GATEWAY_CA=certificate,
    )
    with services() as stack:
        ends = [
            stack.enter_context(
                running(
                    bridge(
                        folder / f"bridge-{number}",
                        port,
                        exporters,
                        **(environment or {}),
                    )
                )
            )
            for number, port in enumerate(ports)
        ]
        stack.enter_context(running(gateway))
        stack.enter_context(running(agent))
        yield Chain(
            agent=agent,
            gateway=gateway,
            bridges=ends,
            endpoint=f"http://127.0.0.1:{agent_grpc}",
            http_endpoint=f"http://127.0.0.1:{agent_http}",
            gateway_endpoint=f"https://localhost:{grpc}",
            scrape_port=metrics,
            archive=folder / "archive",
            certificate=certificate,
        )
