"""`botocore.config.Config`: kept, compared and merged; what it decides is decided by the host."""

OPTIONS = {
    "region_name": None,
    "signature_version": None,
    "user_agent": None,
    "user_agent_extra": None,
    "user_agent_appid": None,
    "connect_timeout": 60,
    "read_timeout": 60,
    "parameter_validation": True,
    "max_pool_connections": 10,
    "proxies": None,
    "proxies_config": None,
    "s3": None,
    "retries": None,
    "client_cert": None,
    "inject_host_prefix": None,
    "endpoint_discovery_enabled": None,
    "use_dualstack_endpoint": None,
    "use_fips_endpoint": None,
    "ignore_configured_endpoint_urls": None,
    "defaults_mode": None,
    "tcp_keepalive": None,
    "request_min_compression_size_bytes": None,
    "disable_request_compression": None,
    "client_context_params": None,
    "sigv4a_signing_region_set": None,
    "request_checksum_calculation": None,
    "response_checksum_validation": None,
    "account_id_endpoint_mode": None,
    "auth_scheme_preference": None,
}


class Config:
    """Options by their names; an unknown one is a TypeError."""

    NON_LEGACY_OPTION_DEFAULTS = {"connect_timeout": None}

    def __init__(self, *args, **kwargs):
        given = dict(zip(OPTIONS, args))
        for name in kwargs:
            if name not in OPTIONS:
                raise TypeError("Got unexpected keyword argument '%s'" % name)
            if name in given:
                raise TypeError("Got multiple values for keyword argument '%s'" % name)
        given.update(kwargs)
        self._user_provided_options = given
        for name, default in OPTIONS.items():
            setattr(self, name, given.get(name, default))

    def merge(self, other_config):
        """Another one, with what the other was given on top."""
        options = dict(self._user_provided_options)
        options.update(other_config._user_provided_options)
        return Config(**options)


Config.__module__ = "botocore.config"
