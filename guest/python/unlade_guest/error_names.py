"""Names of botocore's exceptions that nothing here raises, by their bases."""

NAMES = {
    "BotoCoreError": """
        DataNotFoundError UnknownRegionError ApiVersionNotFoundError InvalidIMDSEndpointError
        InvalidIMDSEndpointModeError NoCredentialsError NoAuthTokenError TokenRetrievalError
        UnknownTokenProviderError PartialCredentialsError CredentialRetrievalError
        UnknownSignatureVersionError ServiceNotInRegionError BaseEndpointResolverError
        ProfileNotFound ConfigParseError ConfigNotFound MissingParametersError ValidationError
        UnknownServiceStyle ChecksumError InvalidExpressionError
        UnknownCredentialError WaiterConfigError UnsupportedSignatureVersionError
        InvalidDNSNameError InvalidS3AddressingStyleError UnsupportedS3ArnError
        UnsupportedS3ControlArnError InvalidHostLabelError UnsupportedOutpostResourceError
        UnsupportedS3ConfigurationError UnsupportedS3AccesspointConfigurationError
        InvalidEndpointDiscoveryConfigurationError UnsupportedS3ControlConfigurationError
        InvalidRetryConfigurationError InvalidS3UsEast1RegionalEndpointConfigError
        InvalidSTSRegionalEndpointsConfigError StubResponseError InvalidConfigError
        RefreshWithMFAUnsupportedError MD5UnavailableError MissingDependencyException
        MetadataRetrievalError SSOError LoginError CapacityNotAvailableError
        InvalidProxiesConfigError InvalidDefaultsMode AwsChunkedWrapperError
        FlexibleChecksumError InvalidEndpointConfigurationError EndpointProviderError
        InvalidChecksumConfigError UnsupportedServiceProtocolsError
    """,
    "DataNotFoundError": "UnknownServiceError",
    "ConnectionError": "SSLError ConnectTimeoutError ProxyConnectionError",
    "BaseEndpointResolverError": """
        NoRegionError EndpointVariantError UnknownFIPSEndpointError
    """,
    "BaseEndpointResolverError ValueError": "UnknownEndpointError",
    "ValidationError": """
        UnknownKeyError RangeError UnknownParameterError AliasConflictParameterError
    """,
    "ValidationError ValueError": "InvalidRegionError",
    "ClientError": "EventStreamError",
    "Warning": "UnsupportedTLSVersionWarning ImminentRemovalWarning",
    "InvalidRetryConfigurationError": "InvalidMaxRetryAttemptsError InvalidRetryModeError",
    "StubResponseError AssertionError": "StubAssertionError",
    "StubResponseError": "UnStubbedResponseError",
    "InvalidConfigError": "InfiniteLoopConfigError",
    "Exception": "UndefinedModelAttributeError",
    "UndefinedModelAttributeError": "MissingServiceIdError",
    "SSOError": "SSOTokenLoadError UnauthorizedSSOTokenError",
    "LoginError": """
        LoginRefreshRequired LoginInsufficientPermissions LoginTokenLoadError
        LoginAuthorizationCodeError
    """,
    "EndpointProviderError": "EndpointResolutionError UnknownEndpointResolutionBuiltInName",
}
BUILT_IN = {
    "AssertionError": AssertionError,
    "Exception": Exception,
    "ValueError": ValueError,
    "Warning": Warning,
}


def bases_of(name):
    """Names or classes of an exception's bases. AttributeError where there is no such one."""
    for bases, names in NAMES.items():
        if name in names.split():
            return [BUILT_IN.get(base, base) for base in bases.split()]
    raise AttributeError("module 'botocore.exceptions' has no attribute %r" % name)
