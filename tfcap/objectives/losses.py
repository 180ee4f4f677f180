"""Training losses: cross-entropy, distillation, and the loss of self-critical training.

Letters: B images, S samples of an image, N rows, T positions, V vocabulary.
"""

import math

import tensorflow as tf


def cross_entropy(
    logits: tf.Tensor, targets: tf.Tensor, label_smoothing: float = 0.0
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Computes the cross-entropy of captions, summed over all words, with label smoothing.

    With smoothing e and V words in the vocabulary, the target distribution has 1 - e on the correct
    word and e / (V - 1) on every other word. The loss is the Kullback-Leibler divergence of the
    model from the target, as in the released X-Transformer and ExpansionNet. `label_smoothing` of
    Keras differs: it adds e / V to the correct word.

    Args:
      logits: scores of the model before the softmax, float32 [..., T, V], for T positions.
      targets: ids of the correct words, int32 [..., T]; positions with 0 (PAD) do not count.
      label_smoothing: the smoothing e, at least 0 and below 1.

    Returns:
      Three float32 scalars: the sum of the loss; the sum of the negative log-likelihood of the
      correct words, which equals the loss without smoothing; and the number of words, end marks
      included. Both sums are in nats, and neither contains a penalty on the weights. A sum divided
      by the number of words is a mean per word.

    Example:
      >>> loss, nll, words = cross_entropy(tf.zeros([1, 3, 4]), tf.constant([[1, 2, 0]]))
      >>> print(f"{loss / words:.4f}")  # the logarithm of 4 equally probable words
      1.3863
    """
    size = logits.shape[-1]
    real = tf.cast(targets != 0, tf.float32)
    words = tf.reduce_sum(real)
    # These operations compute loss and gradient in one pass. The gradients of a gather and of a
    # logarithm of a sum write several arrays as large as the logits.
    if not label_smoothing:
        nll = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        nll = tf.reduce_sum(nll * real)
        return nll, nll, words
    correct = 1 - label_smoothing
    other = label_smoothing / (size - 1)
    labels = tf.one_hot(targets, size, on_value=correct, off_value=other)
    negative_entropy = correct * math.log(correct) + label_smoothing * math.log(other)
    loss = tf.nn.softmax_cross_entropy_with_logits(labels, logits) + negative_entropy
    logits = tf.stop_gradient(logits)  # the negative log-likelihood is only reported
    nll = tf.reduce_logsumexp(logits, -1)
    nll -= tf.gather(logits, targets, batch_dims=len(targets.shape))
    return tf.reduce_sum(loss * real), tf.reduce_sum(nll * real), words


def distillation(
    logits: tf.Tensor, taught: tf.Tensor, targets: tf.Tensor, temperature: float = 1.0
) -> tf.Tensor:
    """Computes the cross-entropy with the probabilities of a teacher, summed over all words.

    This is the first objective of Hinton et al. (2015): T^2 times the cross-entropy of
    softmax(logits / T) with softmax(taught / T). The factor T^2 keeps the size of the gradient.

    Args:
      logits: scores of the model before the softmax, float32 [..., P, V], for P positions.
      taught: scores of the teacher before the softmax, float32 [..., P, V]; they get no gradient.
      targets: ids of the words of the captions, int32 [..., P]; positions with 0 (PAD) do not
        count.
      temperature: the temperature T.

    Returns:
      The sum, a float32 scalar in nats.

    Example:
      >>> taught = tf.math.log([[[0.5, 0.25, 0.25]]])
      >>> print(f"{distillation(tf.zeros([1, 1, 3]), taught, tf.constant([[2]])):.4f}")
      1.0986
    """
    real = tf.cast(targets != 0, tf.float32)
    probabilities = tf.nn.softmax(tf.stop_gradient(taught) / temperature)
    loss = tf.nn.softmax_cross_entropy_with_logits(probabilities, logits / temperature)
    return temperature**2 * tf.reduce_sum(loss * real)


def advantages(
    rewards: tf.Tensor, baseline: str, greedy: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Subtracts a baseline from the reward of each sampled caption.

    Args:
      rewards: rewards of S samples of each of B images, float32 [B, S].
      baseline: the name of the baseline. `greedy` is the reward of the greedy caption (Rennie et
        al. 2017, equation 8; the released X-LAN and X-Transformer). `others` is the mean reward of
        the other samples of the image (Luo 2020; equation 15 of ExpansionNet). The text of
        ExpansionNet divides by S; its code and this function divide by S - 1.
      greedy: rewards of the greedy captions, float32 [B, 1]. The baseline `greedy` needs them; the
        baseline `others` ignores them.

    Returns:
      The advantages, which are the rewards minus the baselines, and the baselines: both float32
      [B, S].

    Raises:
      ValueError: `baseline` is neither `greedy` nor `others`. The baseline is `greedy`, but the
        argument `greedy` is missing. The baseline is `others`, but S is 1.

    Example:
      >>> advantage, mean_of_others = advantages(tf.constant([[1.0, 2.0, 3.0]]), "others")
      >>> print(advantage.numpy(), mean_of_others.numpy())
      [[-1.5  0.   1.5]] [[2.5 2.  1.5]]
    """
    if baseline == "greedy":
        if greedy is None:
            raise ValueError(
                "`baseline=greedy` needs the rewards of greedy captions. Give them as `greedy`, or "
                "set `baseline=others`."
            )
        subtracted = tf.broadcast_to(greedy, tf.shape(rewards))
    elif baseline == "others":
        if rewards.shape[1] == 1:
            raise ValueError(
                "`baseline=others` needs at least two samples of each image. Draw more samples, or "
                "set `baseline=greedy`."
            )
        others = tf.cast(tf.shape(rewards)[1] - 1, tf.float32)
        subtracted = (tf.reduce_sum(rewards, 1, keepdims=True) - rewards) / others
    else:
        raise ValueError(f"`baseline` must be one of greedy, others, not {baseline!r}.")
    return rewards - subtracted, subtracted


def self_critical(
    logps: tf.Tensor, tokens: tf.Tensor, advantages: tf.Tensor, reduction: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the loss of self-critical training, as a sum and the number to divide it by.

    Each word and each end mark adds -log p(word) times the advantage of its caption to the sum. No
    gradient flows through the advantage.

    Args:
      logps: natural log-probability of each sampled word, float32 [N, T], for N captions of up to T
        tokens.
      tokens: token ids of the sampled captions, int32 [N, T]; 0 (PAD) after the end.
      advantages: advantage of each caption, float32 [N], as the function `advantages` computes it.
      reduction: the divisor. `words` is the number of words and end marks (the released X-LAN and
        X-Transformer). `sequences` is N (ExpansionNet). With `sequences`, the expected gradient is
        that of the negative expected reward.

    Returns:
      Two float32 scalars: the sum of the loss, and the divisor.

    Example:
      >>> logps, tokens = tf.constant([[-1.0, -2.0]]), tf.constant([[5, 2]])
      >>> loss, words = self_critical(logps, tokens, tf.constant([0.5]), "words")
      >>> float(loss), float(words)
      (1.5, 2.0)
    """
    real = tf.cast(tokens != 0, tf.float32)
    loss = -tf.reduce_sum(logps * real * tf.stop_gradient(advantages)[:, None])
    rows = tf.cast(tf.shape(tokens)[0], tf.float32)
    return loss, tf.reduce_sum(real) if reduction == "words" else rows
