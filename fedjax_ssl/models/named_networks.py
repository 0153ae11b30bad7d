"""Networks by name."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.models.layers import Network
from fedjax_ssl.models.model import Model, Outputs, check_inputs
from fedjax_ssl.own_code import where
from fedjax_ssl.registry import Registry

_NETWORKS = {
    "linear": ("convnets:Linear", "softmax regression on the flattened input"),
    "mlp": ("convnets:MLP", "fully connected network, one hidden layer of 128 by default"),
    "cnn": (
        "convnets:CNN",
        "two 3x3 convolutions and 128 hidden units, the FEMNIST benchmarks' network",
    ),
    "cnn13": ("convnets:CNN13", "nine weight-normalised convolutions, the CIFAR network of XCLP"),
    "mnist_cnn": (
        "convnets:MnistCNN",
        "three 5x5 convolutions and two hidden layers, the MNIST network of FedUL",
    ),
    "emnist_cnn": (
        "convnets:EmnistCNN",
        "two 3x3 convolutions and 128 hidden units, the EMNIST network of FedRGD",
    ),
    "resnet18": (
        "residual:ResNet18",
        "residual network, stem='cifar', 'imagenet' (torchvision's) or 'imagenet_unpooled'",
    ),
    "resnet8_basic": (
        "residual:ThreeStageResNet8",
        "a basic block per stage, the CIFAR network of SAGE",
    ),
    "wrn28": (
        "residual:WideResNet28",
        "wide residual network WRN-28-k, k = widen, the CIFAR network of SemiFL",
    ),
    "resnet8": (
        "proto_resnet:ResNet8",
        "eight convolutions without a head, the embedding network of ProtoFSSL",
    ),
    "resnet9": (
        "proto_resnet:ResNet9",
        "the same with a dense head, the network of ProtoFSSL's baselines",
    ),
    "resnet17": (
        "proto_resnet:ResNet17",
        "seventeen convolutions without a head, ProtoFSSL's large network",
    ),
    "proto_resnet18": (
        "proto_resnet:ProtoResNet18",
        "the same with a dense head, for ProtoFSSL's baselines",
    ),
    "fedmatch_resnet9": (
        "proto_resnet:FedMatchResNet9",
        "resnet9 without biases, the CIFAR network of FedMatch",
    ),
    "fedmatch_alexnet": (
        "convnets:FedMatchAlexNet",
        "three convolutions, two hidden layers, no biases, of FedMatch",
    ),
    "efficientnet_b0": (
        "efficientnet:EfficientNetB0",
        "EfficientNet-B0; torchvision's weights with weights='FILE.npz'",
    ),
    "logistic": ("convnets:Logistic", "logistic regression of two classes, one weight per input"),
}


MODELS: Registry[Any] = Registry(
    "model",
    {name: (f"fedjax_ssl.models.{place}", line) for name, (place, line) in _NETWORKS.items()},
    given=("num_classes", "input_shape", "parent", "name"),
)
available = MODELS.available  # () -> names that `build` knows, each with a line about it
options = MODELS.options  # name -> options that `build` takes for it


def build(name: str, *, num_classes: int, input_shape: tuple[int, ...], **given: Any) -> Model:
    """Build the network `name`.

    Args:
        name: one of `available()`.
        num_classes: number of class scores K.
        input_shape: shape of one example, (height, width, channels) for images.
        **given: `options` of the network, for example `norm="gn"`; every network has
            `normalize_features` and `aux_head`. With `weights` the file is read here.

    Returns:
        The model.

    Raises:
        ValueError: unknown name or option, a value or input shape that the network cannot work
            with, or a file of weights that does not fit it.

    Example:
        >>> import jax
        >>> from fedjax_ssl import models
        >>> model = models.build("mlp", num_classes=3, input_shape=(5,), hidden=(8,))
        >>> params, state = model.init(jax.random.key(0))
        >>> outputs, _ = model.apply(params, state, jax.numpy.ones((2, 5)), train=False)
        >>> outputs.logits.shape, outputs.features.shape
        ((2, 3), (2, 8))
    """
    check_whole_numbers(num_classes=num_classes)
    input_shape = tuple(input_shape)
    if not input_shape or any(size < 1 for size in input_shape):
        raise ValueError(f"input_shape must be one or more positive integers, got {input_shape}")
    hashable = {
        option: tuple(value) if isinstance(value, list) else value
        for option, value in given.items()
    }
    builder = MODELS.builder(name)
    if not (inspect.isclass(builder) and issubclass(builder, Network)):
        from fedjax_ssl.models.own_networks import own_network  # with nnx

        fixed = {"num_classes": num_classes, "input_shape": input_shape}
        taken = {one: value for one, value in fixed.items() if MODELS.takes(name, one)}
        return own_network(
            MODELS.build(name, **hashable, **taken), num_classes, input_shape, where(builder)
        )
    module = MODELS.build(name, num_classes=num_classes, **hashable)
    model = _model_of(module, input_shape)
    # A shape or value that does not fit is an error here, not later; nothing is computed.
    jax.eval_shape(lambda: model.init(jax.random.key(0)))
    if weights := getattr(module, "weights", None):
        from fedjax_ssl.models.pretrained import layers_of, pretrained

        named = layers_of(name)
        return pretrained(model, weights, *named) if named else model
    return model


def _model_of(module: Network, input_shape: tuple[int, ...]) -> Model:
    """Wrap a network of this package, a module `(inputs, train, mask) -> Outputs`, as pure
    functions.

    The computation runs in the dtype of the parameters: cast them to bfloat16 and the network
    computes in bfloat16 (statistics of batches stay in float32). At its start the module notes the
    weights of a batch in its statistics in the collection "batch_weights" and the operations of its
    layers in "operations".
    """

    def variables_of(key: PRNGKeyArray) -> PyTree:
        return module.init(key, jnp.zeros((1, *input_shape), jnp.result_type(float)), False, None)

    @jax.jit
    def init(key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        variables = variables_of(key)
        return variables["params"], variables.get("batch_stats", {})

    def noted(collection: str) -> PyTree:
        """Return the notes that layers make when a network starts, as Python numbers."""
        notes: dict[str, PyTree] = {}
        jax.eval_shape(lambda: notes.update(variables_of(jax.random.key(0)).get(collection, {})))
        return notes

    def apply(
        params: PyTree,
        state: PyTree,
        inputs: Float[Array, "n ..."],
        *,
        train: bool,
        key: PRNGKeyArray | None = None,
        mask: Bool[Array, " n"] | None = None,
    ) -> tuple[Outputs, PyTree]:
        inputs = check_inputs(params, inputs, mask, input_shape)
        if train and module.needs_key and key is None:
            raise ValueError(
                "this model has dropout: apply(..., train=True) needs key=, a typed key of "
                "jax.random.key"
            )
        variables = {"params": params, "batch_stats": state}
        rngs = {} if key is None else {"dropout": key}
        outputs, updates = module.apply(
            variables, inputs, train, mask, rngs=rngs, mutable=["batch_stats"]
        )
        return outputs, updates.get("batch_stats", {})

    return Model(
        init,
        apply,
        getattr(module, "has_class_scores", True),
        lambda: noted("batch_weights"),
        lambda: sum(jax.tree.leaves(noted("operations"))),
    )
